"""The exact index."""

from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np

from retriever.embedding.base import Vector
from retriever.index.base import Ids, StageHits
from retriever.index.lock import ReadWriteLock


class FlatIndex:
    """Compares the query with every vector: the truth for other indexes, and quick while there are few."""

    kind = "flat"

    def __init__(self, dimension: int) -> None:
        self._lock = ReadWriteLock()
        # Faiss's type stubs lack half of what is called here.
        self._index: Any = faiss.IndexIDMap2(faiss.IndexFlatIP(dimension))

    @classmethod
    def load(cls, dump: bytes) -> "FlatIndex":
        """The index that ``dump`` wrote."""
        index = cls(1)
        index._index = faiss.deserialize_index(np.frombuffer(dump, np.uint8))
        return index

    @property
    def size(self) -> int:
        """How many vectors it holds."""
        return int(self._index.ntotal)

    def search(self, query: Vector, k: int, allowed: Ids | None = None) -> Iterator[StageHits]:
        """The ``k`` nearest vectors, in one stage."""
        selector = None if allowed is None else faiss.IDSelectorBatch(allowed)
        parameters = None if selector is None else faiss.SearchParameters(sel=selector)  # type: ignore[call-arg]
        with self._lock.reading():
            most = max(1, min(k, self.size))
            scores, ids = self._index.search(query[None], most, params=parameters)
        found = ids[0] >= 0
        yield StageHits(ids[0][found], scores[0][found], 1, 1)

    def add(self, ids: Ids, vectors: Vector) -> None:
        """Add vectors under new ids."""
        with self._lock.writing():
            self._index.add_with_ids(vectors, ids)

    def remove(self, ids: Ids) -> None:
        """Remove vectors; costs a pass over all."""
        if len(ids):
            with self._lock.writing():
                self._index.remove_ids(ids)

    def ids(self) -> Ids:
        """The ids it holds, ascending."""
        return np.sort(faiss.vector_to_array(self._index.id_map))

    def dump(self) -> bytes:
        """The index as bytes."""
        return bytes(faiss.serialize_index(self._index))
