"""Store documents and search their chunks.

``retriever.retriever.Retriever`` implements ``protocol.parts.Retriever``. ``retriever.build.build_retriever`` creates
one from ``RetrieverSettings``. SQLite is the source of truth for what is stored and visible. A vector index only
proposes chunk ids, and the store resolves them. So an index that lags, is lost or is damaged never changes what an
answer may contain.
"""
