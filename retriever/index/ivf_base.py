"""The base of inverted file indexes: training, and searching the lists."""

import math
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import faiss
import numpy as np

from retriever.embedding.base import Vector
from retriever.embedding.vector_checks import checked_vectors, query_row
from retriever.index.base import StageHits, Trained
from retriever.index.faiss_index import FaissIndex, SliceScan
from retriever.index.ivf_probe import Probe
from retriever.index.stage_planner import equal_slices
from retriever.settings import IndexSettings
from retriever.store.chunks import Ids

POINTS_PER_LIST = 64
"""Training uses at most this many vectors per centroid."""


class IVFBase(FaissIndex):
    """Vectors in lists around trained centroids. A search reads the lists nearest to the query, nearest first.

    Under a filter it reads more lists, in proportion to the vectors that the filter excludes, up to all lists. So a
    search among few vectors is exact.
    """

    def __init__(
        self, index: faiss.Index, trained: Trained, settings: IndexSettings, clock: Callable[[], float] = perf_counter
    ) -> None:
        super().__init__(index, settings, clock)
        self.trained = trained
        # Faiss creates new Python objects for its attributes on every access.
        self._quantizer: Any = self._index.quantizer
        self._lists = int(self._index.nlist)

    def search(self, query: Vector, k: int, allowed: Ids | None = None) -> Iterator[StageHits]:
        """Yield the ``k`` nearest vectors of the lists that are read.

        Other indexes refuse a query whose squared norm overflows or underflows float32. This one accepts it if its
        products with the centroids are finite. It ranks like the unit vector of its direction.
        """
        row = query_row(query, self._dimension)
        planner = self._planners[allowed is not None]
        with self._lock.reading():
            version, size = self._version, self.size
        most = max(1, min(k, size))
        probes = self._probes(most, size, size if allowed is None else len(allowed))
        nearness, lists = np.empty(probes, np.float32), np.empty(probes, np.int64)
        # Call Faiss directly: its wrapper repeats checks. Centroids never change, so no lock is needed.
        self._quantizer.search_c(1, faiss.swig_ptr(row), probes, faiss.swig_ptr(nearness), faiss.swig_ptr(lists))
        if lists[0] < 0 or not 0 < abs(nearness[0]) < math.inf:
            # Only a query that is zero or not finite gets here, so normal queries skip the check.
            checked_vectors(row, self._dimension)
        slices = equal_slices(probes, planner.stages(probes))
        scan = self._scan_of(Probe(row, lists, nearness, slices), allowed)
        return self._staged(most, slices, version, scan, planner, probes)

    def _scan_of(self, probe: Probe, allowed: Ids | None) -> SliceScan:
        """Return the scan that reads the lists of a probe."""
        raise NotImplementedError

    def _probes(self, k: int, size: int, candidates: int) -> int:
        """Return how many lists to read, so that they hold many times ``k`` candidates."""
        share = max(self._settings.probe_share, self._settings.tuning.min_probes / self._lists)
        # With a small share and a large k, the lists might hold fewer than k vectors.
        share = max(share, 4 * k / max(1, size))
        thinned = share * size / max(1, candidates)
        return max(1, min(self._lists, math.ceil(self._lists * thinned)))


def trained_lists(count: int, sample: Vector, settings: IndexSettings) -> Any:  # noqa: ANN401 - as Faiss's stubs are
    """Train centroids for ``count`` vectors on a sample, [n, dimension], n > 0, and return the empty lists."""
    lists = min(len(sample), settings.tuning.lists or math.ceil(4 * math.sqrt(count)))
    dimension = sample.shape[1]
    index: Any = faiss.IndexIVFFlat(faiss.IndexFlatIP(dimension), dimension, lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.spherical = True
    index.cp.max_points_per_centroid = POINTS_PER_LIST
    # Otherwise Faiss warns on every training that there are few points per centroid.
    index.cp.min_points_per_centroid = 1
    index.train(sample)
    return index
