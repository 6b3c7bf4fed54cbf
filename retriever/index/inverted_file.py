"""What inverted files have in common: how one is trained, and how a search goes through its lists."""

import math
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import faiss
import numpy as np

from retriever.embedding.base import Vector
from retriever.embedding.checks import checked_vectors, query_row
from retriever.index.base import Ids, StageHits, Trained
from retriever.index.faiss_index import FaissIndex, Scan
from retriever.index.lists import Probed
from retriever.index.slices import equal_slices
from retriever.settings import IndexSettings

POINTS_PER_LIST = 64
"""More vectors a centroid than this are not looked at in training."""


class InvertedFile(FaissIndex):
    """Vectors in lists round trained centroids, of which a search reads those nearest to the query, nearest first.

    Under a filter it reads as many lists more as the filter leaves vectors fewer, up to all: a search among few is
    exact.
    """

    def __init__(
        self, index: faiss.Index, trained: Trained, settings: IndexSettings, clock: Callable[[], float] = perf_counter
    ) -> None:
        super().__init__(index, settings, clock)
        self.trained = trained
        # Faiss makes new Python objects of its parts every time it is asked for them.
        self._quantizer: Any = self._index.quantizer
        self._lists = int(self._index.nlist)

    def search(self, query: Vector, k: int, allowed: Ids | None = None) -> Iterator[StageHits]:
        """The ``k`` nearest vectors of the lists that are read.

        A query so large or so small that its square is no float32 is refused by other indexes and accepted here, as
        long as its products with centroids are numbers: the ranking is that of a unit vector of its direction.
        """
        asked = query_row(query, self._dimension)
        pace = self._paces[allowed is not None]
        with self._lock.reading():
            version, size = self._version, self.size
        most = max(1, min(k, size))
        probes = self._probes(most, size, size if allowed is None else len(allowed))
        nearness, lists = np.empty(probes, np.float32), np.empty(probes, np.int64)
        # Faiss's own wrapper of this call checks what is known here. Centroids never change.
        self._quantizer.search_c(1, faiss.swig_ptr(asked), probes, faiss.swig_ptr(nearness), faiss.swig_ptr(lists))
        if lists[0] < 0 or not 0 < abs(nearness[0]) < math.inf:
            # What is zero or no number shows here, and need not be looked for in all other queries.
            checked_vectors(asked, self._dimension)
        slices = equal_slices(probes, pace.stages(probes))
        scan = self._scan_of(Probed(asked, lists, nearness, slices), allowed)
        return self._staged(most, slices, version, scan, pace, probes)

    def _scan_of(self, probed: Probed, allowed: Ids | None) -> Scan:
        """The reading of the lists for a query."""
        raise NotImplementedError

    def _probes(self, k: int, size: int, candidates: int) -> int:
        """How many lists to read, so that what is read of ``size`` vectors holds many times ``k`` candidates."""
        share = max(self._settings.probe_share, self._settings.min_probes / self._lists)
        # With a small share and a large k, the lists read might not even hold k vectors.
        share = max(share, 4 * k / max(1, size))
        thinned = share * size / max(1, candidates)
        return max(1, min(self._lists, math.ceil(self._lists * thinned)))


def trained_lists(count: int, sample: Vector, settings: IndexSettings) -> Any:  # noqa: ANN401 - as Faiss's stubs are
    """Empty lists for ``count`` vectors, their centroids trained on a sample of them, [n, dimension]; n is not 0."""
    lists = min(len(sample), settings.lists or math.ceil(4 * math.sqrt(count)))
    dimension = sample.shape[1]
    index: Any = faiss.IndexIVFFlat(faiss.IndexFlatIP(dimension), dimension, lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.spherical = True
    index.cp.max_points_per_centroid = POINTS_PER_LIST
    # There are fewer points a centroid than Faiss likes to see; it would say so on every training.
    index.cp.min_points_per_centroid = 1
    index.train(sample)
    return index
