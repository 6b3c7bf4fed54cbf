"""The inverted-file index."""

import math
from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np

from retriever.embedding.base import Vector
from retriever.index.base import Ids, StageHits
from retriever.index.faiss_index import FaissIndex
from retriever.settings import IndexSettings


class IVFIndex(FaissIndex):
    """Vectors in lists round trained centroids, of which a search reads those nearest to the query.

    Under a filter it reads as many lists more as the filter leaves vectors fewer, up to all: a search among few is
    exact.
    """

    kind = "ivf"

    def __init__(self, index: faiss.Index, trained_on: int, settings: IndexSettings) -> None:
        super().__init__(index)
        self._settings = settings
        self.trained_on = trained_on

    @classmethod
    def train(cls, ids: Ids, vectors: Vector, settings: IndexSettings) -> "IVFIndex":
        """An index of these vectors, [n, dimension], whose centroids are trained on them; n must not be 0."""
        count, dimension = vectors.shape
        lists = min(count, math.ceil(4 * math.sqrt(count)))
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
        return cls(index, count, settings)

    @classmethod
    def load(cls, dump: bytes, trained_on: int, settings: IndexSettings) -> "IVFIndex":
        """The index that ``dump`` wrote."""
        index = faiss.deserialize_index(np.frombuffer(dump, np.uint8))
        return cls(index, trained_on, settings)

    @property
    def outgrown(self) -> bool:
        """Whether it holds so many more vectors than it was trained on that it should be trained again."""
        return self.size >= self.trained_on * self._settings.retrain_growth

    def search(self, query: Vector, k: int, allowed: Ids | None = None) -> Iterator[StageHits]:
        """The ``k`` nearest vectors of the lists that are read, in one stage."""
        selector = None if allowed is None else faiss.IDSelectorBatch(allowed)
        with self._lock.reading():
            most = max(1, min(k, self.size))
            candidates = self.size if allowed is None else len(allowed)
            probes = self._probes(most, candidates)
            parameters = faiss.SearchParametersIVF(nprobe=probes, sel=selector)  # type: ignore[call-arg]
            hits = self._one_stage(query, most, parameters)
        yield hits

    def ids(self) -> Ids:
        """The ids it holds, ascending."""
        lists = self._index.invlists
        parts = [
            faiss.rev_swig_ptr(lists.get_ids(number), lists.list_size(number)).copy()
            for number in range(lists.nlist)
            if lists.list_size(number)
        ]
        return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)

    def _probes(self, k: int, candidates: int) -> int:
        """How many lists to read, so that what is read holds many times ``k`` candidates."""
        lists = int(self._index.nlist)
        share = max(self._settings.probe_share, self._settings.min_probes / lists)
        # With a small share and a large k, the lists read might not even hold k vectors.
        share = max(share, 4 * k / max(1, self.size))
        thinned = share * self.size / max(1, candidates)
        return min(lists, math.ceil(lists * thinned))
