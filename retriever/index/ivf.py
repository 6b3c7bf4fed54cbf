"""The inverted file index: training, the lists that a query reads, and the index in memory."""

import math
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import faiss
import numpy as np

from retriever.embedding.base import Vector, checked_vectors, query_row
from retriever.index.base import StageHits, Trained
from retriever.index.faiss_index import FaissIndex, Slice, SliceScan, equal_slices
from retriever.settings import IndexSettings
from retriever.store.chunks import Ids

POINTS_PER_LIST = 64
"""Training uses at most this many vectors per centroid."""


class Probe(NamedTuple):
    """A query, [1, dimension], with the lists to read and their scores, each [lists], nearest first.

    ``slices`` are the parts that the stages are expected to read.
    """

    query: Vector
    lists: Ids
    nearness: Vector
    slices: Sequence[Slice]

    def scan(
        self,
        index: Any,  # noqa: ANN401 - as Faiss's stubs are
        selector: Callable[[], faiss.IDSelector | None],
    ) -> SliceScan:
        """Return the scan of these lists in an index. Each call of the scan calls ``selector`` again."""
        parameters: Any = faiss.SearchParametersIVF()
        query_at = faiss.swig_ptr(self.query)
        # Create the pointers before reading any lists, which evict them from the processor's caches.
        parts: dict[tuple[int, int], tuple[Any, Any]] = {part: self._at(*part) for part in self.slices}
        table: list[Any] = [None, None, None]

        def scan(begin: int, end: int, ids: Ids, scores: Vector) -> None:
            parameters.nprobe, parameters.sel = end - begin, selector()
            part = parts.get((begin, end)) or self._at(begin, end)
            if table[0] is not ids:
                table[:] = ids, faiss.swig_ptr(scores), faiss.swig_ptr(ids)
            # Call Faiss directly: its wrapper takes no parameters.
            index.search_preassigned_c(1, query_at, len(ids), *part, table[1], table[2], False, parameters)

        return scan

    def _at(self, begin: int, end: int) -> tuple[Any, Any]:
        """Return pointers to some of the lists and their scores."""
        return faiss.swig_ptr(self.lists[begin:end]), faiss.swig_ptr(self.nearness[begin:end])


def listed_ids(index: Any) -> Ids:  # noqa: ANN401 - as Faiss's stubs are
    """Return the ids in an index's lists, ascending."""
    lists = index.invlists
    parts = [
        faiss.rev_swig_ptr(lists.get_ids(number), lists.list_size(number)).copy()
        for number in range(lists.nlist)
        if lists.list_size(number)
    ]
    return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)


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


class IVFIndex(IVFBase):
    """An inverted file in memory."""

    kind = "ivf"

    @classmethod
    def train(
        cls, ids: Ids, vectors: Vector, settings: IndexSettings, clock: Callable[[], float] = perf_counter
    ) -> "IVFIndex":
        """Train centroids on these vectors, [n, dimension], n > 0, and index them."""
        index = trained_lists(len(ids), vectors, settings)
        # With this map a removal looks ids up instead of reading all lists.
        index.set_direct_map_type(faiss.DirectMap.Hashtable)  # type: ignore[attr-defined]
        index.add_with_ids(vectors, ids)
        return cls(index, Trained(len(ids), index.invlists.imbalance_factor()), settings, clock)

    @property
    def needs_rebuild(self) -> bool:
        """Whether it has grown, shrunk or become uneven beyond the limits."""
        growth, imbalance = self._settings.tuning.retrain_growth, self._settings.tuning.retrain_imbalance
        fits = self.trained.vectors / growth < self.size < self.trained.vectors * growth
        drifted = self._index.invlists.imbalance_factor() >= self.trained.imbalance * imbalance
        return not fits or drifted

    def ids(self) -> Ids:
        """Return the ids of all vectors, ascending."""
        return listed_ids(self._index)

    def _scan_of(self, probe: Probe, allowed: Ids | None) -> SliceScan:
        selector = None if allowed is None else faiss.IDSelectorBatch(allowed)
        return probe.scan(self._index, lambda: selector)
