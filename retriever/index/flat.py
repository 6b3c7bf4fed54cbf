"""The exact index."""

from collections.abc import Iterator

import faiss
import numpy as np

from retriever.embedding.base import Vector
from retriever.index.base import Ids, StageHits
from retriever.index.faiss_index import FaissIndex


class FlatIndex(FaissIndex):
    """Compares the query with every vector: the truth for other indexes, and quick while there are few."""

    kind = "flat"

    def __init__(self, dimension: int) -> None:
        super().__init__(faiss.IndexIDMap2(faiss.IndexFlatIP(dimension)))

    @classmethod
    def load(cls, dump: bytes) -> "FlatIndex":
        """The index that ``dump`` wrote."""
        index = cls(1)
        index._index = faiss.deserialize_index(np.frombuffer(dump, np.uint8))
        return index

    def search(self, query: Vector, k: int, allowed: Ids | None = None) -> Iterator[StageHits]:
        """The ``k`` nearest vectors, in one stage."""
        selector = None if allowed is None else faiss.IDSelectorBatch(allowed)
        parameters = None if selector is None else faiss.SearchParameters(sel=selector)  # type: ignore[call-arg]
        with self._lock.reading():
            hits = self._one_stage(query, max(1, min(k, self.size)), parameters)
        yield hits

    def ids(self) -> Ids:
        """The ids it holds, ascending."""
        return np.sort(faiss.vector_to_array(self._index.id_map))
