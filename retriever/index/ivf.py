"""The inverted file index in memory."""

from collections.abc import Callable
from time import perf_counter

import faiss
import numpy as np

from retriever.embedding.base import Vector
from retriever.index.base import Trained
from retriever.index.faiss_index import SliceScan
from retriever.index.ivf_base import IVFBase, trained_lists
from retriever.index.ivf_probe import Probe, listed_ids
from retriever.settings import IndexSettings
from retriever.store.chunks import Ids


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

    @classmethod
    def load(cls, dump: bytes, trained: Trained, settings: IndexSettings) -> "IVFIndex":
        """Restore an index from ``dump``."""
        index = faiss.deserialize_index(np.frombuffer(dump, np.uint8))
        return cls(index, trained, settings)

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

    def dump(self) -> bytes:
        """Serialize the Faiss index, without the state that this class keeps beside it."""
        return bytes(faiss.serialize_index(self._index))

    def _scan_of(self, probe: Probe, allowed: Ids | None) -> SliceScan:
        selector = None if allowed is None else faiss.IDSelectorBatch(allowed)
        return probe.scan(self._index, lambda: selector)
