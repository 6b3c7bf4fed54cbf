"""Search: from a query to live chunks, stage by stage.

``searcher`` is the whole path: embed the query, search the index, resolve chunk ids in the store. Reordering the
found chunks is a separate stage after it (``retriever.reranking``).
"""
