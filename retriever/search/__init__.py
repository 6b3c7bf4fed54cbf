"""Search: from a query to live chunks, stage by stage.

``searcher`` is the whole path: embed the query, search the index, resolve chunk ids in the store. A step that reorders
the found chunks, such as reranking, belongs there, before the final candidate set.
"""
