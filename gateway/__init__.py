"""The HTTP API of RAGTree: routes, errors, API keys, the query pipeline and its events.

Calls the other parts only through ``protocol.parts``.
"""
