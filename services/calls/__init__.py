"""The calls of every query between processes, over connections of their own instead of Ray Serve's handles.

Ray Serve starts the replicas, watches them and tells where they listen. It also carries all other calls.
"""
