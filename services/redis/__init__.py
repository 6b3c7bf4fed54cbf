"""State in Redis that several gateways share, or that outlives a process.

Off unless ``redis.url`` is set. Redis never holds the only copy of anything promised to a user. While it is down, each
process continues with its own state; when Redis is back, its state fills up again through use.
"""
