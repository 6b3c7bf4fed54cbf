"""The inverted file in memory."""

from collections.abc import Callable
from time import perf_counter

import faiss
import numpy as np

from retriever.embedding.base import Vector
from retriever.index.base import Ids, Trained
from retriever.index.faiss_index import Scan
from retriever.index.inverted_file import InvertedFile, trained_lists
from retriever.index.lists import Probed, listed_ids
from retriever.settings import IndexSettings


class IVFIndex(InvertedFile):
    """An inverted file in memory."""

    kind = "ivf"

    @classmethod
    def train(
        cls, ids: Ids, vectors: Vector, settings: IndexSettings, clock: Callable[[], float] = perf_counter
    ) -> "IVFIndex":
        """An index of these vectors, [n, dimension], whose centroids are trained on them; n must not be 0."""
        index = trained_lists(len(ids), vectors, settings)
        # Lets removal look ids up; without it, every removal reads all lists.
        index.set_direct_map_type(faiss.DirectMap.Hashtable)  # type: ignore[attr-defined]
        index.add_with_ids(vectors, ids)
        return cls(index, Trained(len(ids), index.invlists.imbalance_factor()), settings, clock)

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

    def ids(self) -> Ids:
        """The ids it holds, ascending."""
        return listed_ids(self._index)

    def dump(self) -> bytes:
        """The index as bytes, without what its class knows beside it."""
        return bytes(faiss.serialize_index(self._index))

    def _scan_of(self, probed: Probed, allowed: Ids | None) -> Scan:
        selector = None if allowed is None else faiss.IDSelectorBatch(allowed)
        return probed.scan(self._index, lambda: selector)
