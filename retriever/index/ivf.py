"""The inverted-file index."""

import math
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import faiss
import numpy as np

from retriever.embedding.base import Vector
from retriever.index.base import Ids, StageHits, Trained
from retriever.index.faiss_index import FaissIndex
from retriever.index.slices import level_slices
from retriever.settings import IndexSettings


class IVFIndex(FaissIndex):
    """Vectors in lists round trained centroids, of which a search reads those nearest to the query, nearest first.

    Under a filter it reads as many lists more as the filter leaves vectors fewer, up to all: a search among few is
    exact.
    """

    kind = "ivf"

    def __init__(
        self,
        index: faiss.Index,
        trained: Trained,
        settings: IndexSettings,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        super().__init__(index, settings, clock)
        self.trained = trained
        # Faiss makes new Python objects of its parts every time it is asked for them.
        self._quantizer: Any = self._index.quantizer
        self._sizes = self._list_sizes()

    @classmethod
    def train(
        cls, ids: Ids, vectors: Vector, settings: IndexSettings, clock: Callable[[], float] = perf_counter
    ) -> "IVFIndex":
        """An index of these vectors, [n, dimension], whose centroids are trained on them; n must not be 0."""
        count, dimension = vectors.shape
        lists = min(count, settings.lists or math.ceil(4 * math.sqrt(count)))
        # Faiss's type stubs lack half of what is called here.
        index: Any = faiss.IndexIVFFlat(faiss.IndexFlatIP(dimension), dimension, lists, faiss.METRIC_INNER_PRODUCT)
        index.cp.spherical = True
        index.cp.max_points_per_centroid = 64
        # There are fewer points a centroid than Faiss likes to see; it would say so on every training.
        index.cp.min_points_per_centroid = 1
        index.train(vectors)
        # Lets removal look ids up; without it, every removal reads all lists.
        index.set_direct_map_type(faiss.DirectMap.Hashtable)  # type: ignore[attr-defined]
        index.add_with_ids(vectors, ids)
        return cls(index, Trained(count, index.invlists.imbalance_factor()), settings, clock)

    @classmethod
    def load(cls, dump: bytes, trained: Trained, settings: IndexSettings) -> "IVFIndex":
        """The index that ``dump`` wrote."""
        index = faiss.deserialize_index(np.frombuffer(dump, np.uint8))
        return cls(index, trained, settings)

    @property
    def worn(self) -> bool:
        """Whether it has grown, shrunk or become uneven by so much that it should be trained again."""
        growth = self._settings.retrain_growth
        fits = self.trained.vectors / growth < self.size < self.trained.vectors * growth
        drifted = self._index.invlists.imbalance_factor() >= self.trained.imbalance * self._settings.retrain_imbalance
        return not fits or drifted

    def search(self, query: Vector, k: int, allowed: Ids | None = None) -> Iterator[StageHits]:
        """The ``k`` nearest vectors of the lists that are read."""
        asked = self._asked(query)
        selector = None if allowed is None else faiss.IDSelectorBatch(allowed)
        pace = self._paces[selector is not None]
        with self._lock.reading():
            version, most = self._version, max(1, min(k, self.size))
            probes = self._probes(most, self.size if allowed is None else len(allowed))
            nearness, lists = self._quantizer.search(asked, probes)
            filled = self._sizes[lists[0]].cumsum().tolist()
        slices = level_slices(filled, pace.stages(filled[-1]))
        query_at = faiss.swig_ptr(asked)
        parameters = faiss.SearchParametersIVF(sel=selector)  # type: ignore[call-arg]

        def scan(begin: int, end: int, ids: Ids, scores: Vector) -> None:
            parameters.nprobe = end - begin
            # Faiss's own wrapper of this call takes no parameters.
            self._index.search_preassigned_c(
                1,
                query_at,
                len(ids),
                faiss.swig_ptr(lists[0, begin:end]),
                faiss.swig_ptr(nearness[0, begin:end]),
                faiss.swig_ptr(scores),
                faiss.swig_ptr(ids),
                False,
                parameters,
            )

        return self._staged(most, slices, version, scan, pace)

    def ids(self) -> Ids:
        """The ids it holds, ascending."""
        lists = self._index.invlists
        parts = [
            faiss.rev_swig_ptr(lists.get_ids(number), lists.list_size(number)).copy()
            for number in range(lists.nlist)
            if lists.list_size(number)
        ]
        return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)

    def dump(self) -> bytes:
        """The index as bytes, without what its class knows beside it."""
        return bytes(faiss.serialize_index(self._index))

    def _changed(self) -> None:
        super()._changed()
        self._sizes = self._list_sizes()

    def _list_sizes(self) -> Ids:
        """How many vectors each list holds, [lists]; asked once a change, as searches want them all."""
        lists = self._index.invlists
        return np.fromiter(map(lists.list_size, range(lists.nlist)), np.int64, lists.nlist)

    def _probes(self, k: int, candidates: int) -> int:
        """How many lists to read, so that what is read holds many times ``k`` candidates."""
        lists = len(self._sizes)
        share = max(self._settings.probe_share, self._settings.min_probes / lists)
        # With a small share and a large k, the lists read might not even hold k vectors.
        share = max(share, 4 * k / max(1, self.size))
        thinned = share * self.size / max(1, candidates)
        return max(1, min(lists, math.ceil(lists * thinned)))
