"""The exact index."""

from collections.abc import Callable, Iterator
from time import perf_counter

import faiss
import numpy as np

from retriever.embedding.base import Vector
from retriever.index.base import StageHits
from retriever.index.faiss_index import FaissIndex, equal_slices
from retriever.settings import IndexSettings
from retriever.store.chunks import Ids


class FlatIndex(FaissIndex):
    """Compares the query with every vector. The reference for other indexes, and fast for few vectors."""

    kind = "flat"

    def __init__(self, dimension: int, settings: IndexSettings, clock: Callable[[], float] = perf_counter) -> None:
        self._flat = faiss.IndexFlatIP(dimension)
        super().__init__(faiss.IndexIDMap2(self._flat), settings, clock)

    def search(self, query: Vector, k: int, allowed: Ids | None = None) -> Iterator[StageHits]:
        """Yield the ``k`` nearest vectors: in stages over all rows, or in one stage among ``allowed``."""
        row = self._query_row(query)
        selector = None if allowed is None else faiss.IDSelectorBatch(allowed)

        def scan_rows(begin: int, end: int, ids: Ids, scores: Vector) -> None:
            # Rows may have been removed or added since they were sliced. Added rows belong to the last slice.
            rows = self._rows()[begin : end if end < size else None]
            if count := min(len(ids), len(rows)):
                found, places = faiss.knn(row, rows, count, faiss.METRIC_INNER_PRODUCT)
                scores[:count], ids[:count] = found[0], self._row_ids()[begin + places[0]]
            ids[count:], scores[count:] = -1, -np.inf

        def scan_allowed(_begin: int, _end: int, ids: Ids, scores: Vector) -> None:
            parameters = faiss.SearchParameters(sel=selector)  # type: ignore[call-arg]
            self._index.search(row, len(ids), params=parameters, I=ids[None], D=scores[None])

        planner = self._planners[selector is not None]
        with self._lock.reading():
            size, version = self.size, self._version
        slices = equal_slices(size, 1 if selector else planner.stages(size))
        scan = scan_allowed if selector else scan_rows
        return self._staged(max(1, min(k, size)), slices, version, scan, planner, size)

    def ids(self) -> Ids:
        """Return the ids of all vectors, ascending."""
        return np.sort(self._row_ids())

    def _rows(self) -> Vector:
        """A view of Faiss's vectors, [size, dimension]. Valid while the lock is held."""
        return faiss.rev_swig_ptr(self._flat.get_xb(), self.size * self._flat.d).reshape(-1, self._flat.d)
