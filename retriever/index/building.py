"""The choice of an index for a collection, and the making of it out of the store."""

from typing import Literal

import numpy as np

from retriever.embedding.base import Vector
from retriever.index.base import Ids, TrainedIndex
from retriever.index.files import SavedIndex
from retriever.index.flat import FlatIndex
from retriever.index.hnsw import HNSWIndex
from retriever.index.ivf import IVFIndex
from retriever.settings import IndexSettings
from retriever.store.chunks import Chunks
from retriever.store.database import Database, Transaction

Kind = Literal["flat", "ivf", "hnsw"]
AnyIndex = FlatIndex | TrainedIndex


class IndexBuilder:
    """Makes indexes of what the store has, of the kind that the settings ask for; any thread may call it."""

    def __init__(self, database: Database, chunks: Chunks, dimension: int, settings: IndexSettings) -> None:
        self._database = database
        self._chunks = chunks
        self._dimension = dimension
        self._settings = settings

    def kind(self, count: int) -> Kind:
        """The kind that so many vectors should have; a graph or lists of none cannot be built."""
        if self._settings.kind == "auto":
            return "flat" if count < self._settings.ivf_threshold else "ivf"
        return self._settings.kind if count else "flat"

    def due(self, index: AnyIndex) -> bool:
        """Whether an index should be built anew: worn, or too large for what it is."""
        return self.kind(index.size) != "flat" if isinstance(index, FlatIndex) else index.worn

    def empty(self) -> FlatIndex:
        """An index of nothing yet."""
        return FlatIndex(self._dimension, self._settings)

    def build(self, collection: int) -> AnyIndex:
        """An index of the collection's live chunks as they are now."""
        with self._database.read() as transaction:
            ids, vectors = self._vectors(transaction, self._chunks.ids(transaction, collection))
        match self.kind(len(ids)):
            case "ivf":
                return IVFIndex.train(ids, vectors, self._settings)
            case "hnsw":
                return HNSWIndex.build(ids, vectors, self._settings)
            case "flat":
                index = self.empty()
                index.add(ids, vectors)
                return index

    def load(self, saved: SavedIndex) -> TrainedIndex:
        """A saved index. Raises what Faiss does where another Faiss wrote it."""
        implementation = HNSWIndex if saved.kind == HNSWIndex.kind else IVFIndex
        return implementation.load(saved.dump, saved.trained, self._settings)

    def reconcile(self, index: AnyIndex, collection: int) -> int:
        """Make an index hold the collection's live chunks and no other; how many it held too few or too many."""
        with self._database.read() as transaction:
            live, held = self._chunks.ids(transaction, collection), index.ids()
            missing, gone = np.setdiff1d(live, held), np.setdiff1d(held, live)
            index.remove(gone)
            if len(missing):
                index.add(*self._vectors(transaction, missing))
        return len(missing) + len(gone)

    def _vectors(self, transaction: Transaction, ids: Ids) -> tuple[Ids, Vector]:
        parts = list(self._chunks.vectors(transaction, ids, self._dimension))
        if not parts:
            return np.zeros(0, np.int64), np.zeros((0, self._dimension), np.float32)
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
