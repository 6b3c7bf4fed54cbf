"""Store documents and search their chunks.

``retriever.Retriever`` implements ``protocol.parts.Retriever``. ``build.build_retriever`` creates one from
``RetrieverSettings``. SQLite is the source of truth for what is stored and visible. A vector index only proposes chunk
ids, and the store resolves them. So an index that lags, is lost or is damaged never changes an answer's content.
"""
