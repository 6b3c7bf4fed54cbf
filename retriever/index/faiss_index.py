"""What every index on Faiss has in common: a lock, and how vectors go in and out."""

from typing import Any

import faiss
import numpy as np

from retriever.embedding.base import Vector
from retriever.index.base import Ids, StageHits
from retriever.index.lock import ReadWriteLock


class FaissIndex:
    """A Faiss index with ids of our own, which any number may search while one thread changes it."""

    def __init__(self, index: faiss.Index) -> None:
        self._lock = ReadWriteLock()
        # Faiss's type stubs lack half of what is called here.
        self._index: Any = index

    @property
    def size(self) -> int:
        """How many vectors it holds."""
        return int(self._index.ntotal)

    def add(self, ids: Ids, vectors: Vector) -> None:
        """Add vectors under new ids."""
        with self._lock.writing():
            self._index.add_with_ids(vectors, ids)

    def remove(self, ids: Ids) -> None:
        """Remove vectors; ids that it does not hold are ignored."""
        if len(ids):
            with self._lock.writing():
                self._index.remove_ids(np.ascontiguousarray(ids, np.int64))

    def dump(self) -> bytes:
        """The index as bytes, without what its class knows beside it."""
        return bytes(faiss.serialize_index(self._index))

    def _one_stage(self, query: Vector, k: int, parameters: faiss.SearchParameters | None) -> StageHits:
        """The hits of a whole search; the caller holds the lock for reading."""
        scores, ids = self._index.search(query[None], k, params=parameters)
        found = ids[0] >= 0
        return StageHits(ids[0][found], scores[0][found], 1, 1)
