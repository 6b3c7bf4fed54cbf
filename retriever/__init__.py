"""Documents in, chunks found: loaders, chunker, embedders, store, vector indexes and the staged search over them.

``retriever.Retriever`` fulfils ``protocol.parts.Retriever``; ``build_retriever`` makes one from ``RetrieverSettings``.
SQLite is the truth of what is stored and visible. A vector index only proposes chunk ids, which mean nothing until the
store has resolved them, so an index that lags, is lost or is damaged never shows in an answer.
"""
