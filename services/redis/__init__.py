"""What several gateways share, and what outlives their processes, in Redis.

Off unless ``redis.url`` is set. Nothing here is the only copy of anything that a user was promised: while Redis is away
requests go on with what each process has itself, and when it is back, what was missing comes back by use.
"""
