"""Exact search over a retriever's stored embeddings: the reference for its index."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ragtree_lab.workloads.corpus_store import TENANT
from retriever.embedding.factory import build_embedder
from retriever.index.flat import FlatIndex
from retriever.machine import search_on_one_core
from retriever.settings import RetrieverSettings
from retriever.store.chunks import Chunks
from retriever.store.database import Database
from retriever.store.documents import Documents
from retriever.store.orphans import Orphans


class ExactSearch:
    """Compares questions with every embedding of a collection. It only reads the retriever's folder.

    The embeddings come from the store, never from a saved index. Raises UnknownCollection.
    """

    def __init__(self, settings: RetrieverSettings, folder: Path, collection: str) -> None:
        self._embedder = build_embedder(settings.embedder)
        self._database = Database(folder / "store.sqlite3")
        self._chunks = Chunks()
        self._index = FlatIndex(self._embedder.dimension, settings.index)
        # Like the retriever's searches: in a thread, on one core.
        self._pool = ThreadPoolExecutor(1, initializer=search_on_one_core)
        with self._database.read() as transaction:
            key = Documents(Orphans()).collection(transaction, TENANT, collection)
            assert key is not None, "only the default collection may lack a key"
            self._collection = key
            stored = self._chunks.ids(transaction, key)
            for ids, vectors in self._chunks.vectors(transaction, stored):
                self._index.add(ids, vectors)

    async def search(self, question: str, top_k: int) -> list[str]:
        """Return the documents of the ``top_k`` nearest chunks, nearest first."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._search, question, top_k)

    def close(self) -> None:
        """Close the store."""
        self._pool.shutdown()
        self._database.close()

    def _search(self, question: str, top_k: int) -> list[str]:
        *_, hits = self._index.search(self._embedder.embed_query(question), top_k)
        with self._database.read() as transaction:
            chunks = self._chunks.resolve(transaction, self._collection, hits.ids.tolist())
        return [chunks[id_].document_id for id_ in hits.ids.tolist()]
