"""The HTTP API of RAGTree: routes, errors, keys, the query pipeline and its events.

Knows the other parts as ``protocol.parts`` alone.
"""
