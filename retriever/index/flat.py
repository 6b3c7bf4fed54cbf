"""The exact index."""

from collections.abc import Callable, Iterator
from time import perf_counter

import faiss
import numpy as np

from retriever.embedding.base import Vector
from retriever.index.base import Ids, StageHits
from retriever.index.faiss_index import FaissIndex
from retriever.index.slices import equal_slices
from retriever.settings import IndexSettings


class FlatIndex(FaissIndex):
    """Compares the query with every vector: the truth for other indexes, and quick while there are few."""

    kind = "flat"

    def __init__(self, dimension: int, settings: IndexSettings, clock: Callable[[], float] = perf_counter) -> None:
        self._flat = faiss.IndexFlatIP(dimension)
        super().__init__(faiss.IndexIDMap2(self._flat), settings, clock)

    def search(self, query: Vector, k: int, allowed: Ids | None = None) -> Iterator[StageHits]:
        """The ``k`` nearest vectors: of all rows in stages, of those allowed in one."""
        asked = self._asked(query)
        selector = None if allowed is None else faiss.IDSelectorBatch(allowed)

        def scan_rows(begin: int, end: int, ids: Ids, scores: Vector) -> None:
            # Since they were cut into slices, rows may have gone; or come, which are the last slice's.
            rows = self._rows()[begin : end if end < size else None]
            if count := min(len(ids), len(rows)):
                found, places = faiss.knn(asked, rows, count, faiss.METRIC_INNER_PRODUCT)
                scores[:count], ids[:count] = found[0], self._row_ids()[begin + places[0]]
            ids[count:], scores[count:] = -1, -np.inf

        def scan_allowed(_begin: int, _end: int, ids: Ids, scores: Vector) -> None:
            parameters = faiss.SearchParameters(sel=selector)  # type: ignore[call-arg]
            self._index.search(asked, len(ids), params=parameters, I=ids[None], D=scores[None])

        pace = self._paces[selector is not None]
        with self._lock.reading():
            size, version = self.size, self._version
        slices = equal_slices(size, 1 if selector else pace.stages(size))
        scan = scan_allowed if selector else scan_rows
        return self._staged(max(1, min(k, size)), slices, version, scan, pace, size)

    def ids(self) -> Ids:
        """The ids it holds, ascending."""
        return np.sort(self._row_ids())

    def _rows(self) -> Vector:
        """The vectors where Faiss has them, [size, dimension]; good while the lock is held."""
        return faiss.rev_swig_ptr(self._flat.get_xb(), self.size * self._flat.d).reshape(-1, self._flat.d)

    def _row_ids(self) -> Ids:
        """The rows' ids where Faiss has them, [size]; good while the lock is held."""
        return faiss.rev_swig_ptr(self._index.id_map.data(), self.size)
