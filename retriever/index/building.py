"""The choice of an index for a collection, and the making of it out of the store."""

import math
from pathlib import Path
from typing import Literal

import numpy as np

from retriever.embedding.base import Vector
from retriever.index.base import Ids, Trained, TrainedIndex
from retriever.index.files import SavedIndex
from retriever.index.flat import FlatIndex
from retriever.index.hnsw import HNSWIndex
from retriever.index.inverted_file import POINTS_PER_LIST
from retriever.index.ivf import IVFIndex
from retriever.index.mapped import MappedIVFIndex, write_lists
from retriever.index.mapped_files import MappedFiles
from retriever.settings import IndexSettings
from retriever.store.chunks import Chunks
from retriever.store.database import Database, Transaction

Kind = Literal["flat", "ivf", "mapped", "hnsw"]
AnyIndex = FlatIndex | MappedIVFIndex | TrainedIndex

_SHARE_IN_MEMORY = 0.25
"""Of the vectors that an index in memory may have, so many are there at once while one on disk is built."""


class IndexBuilder:
    """Makes indexes of what the store has, of the kind that the settings ask for; any thread may call it."""

    def __init__(
        self,
        database: Database,
        chunks: Chunks,
        mapped: MappedFiles,
        dimension: int,
        fingerprint: str,
        settings: IndexSettings,
    ) -> None:
        self._database = database
        self._chunks = chunks
        self._mapped = mapped
        self._dimension = dimension
        self._vector_bytes = dimension * np.float32().nbytes
        self._fingerprint = fingerprint
        self._settings = settings

    def kind(self, count: int) -> Kind:
        """The kind that so many vectors should have; a graph or lists of none cannot be built."""
        kind = self._settings.kind
        if kind == "auto":
            kind = "flat" if count < self._settings.ivf_threshold else "ivf"
        if not count:
            return "flat"
        return "mapped" if kind == "ivf" and count * self._vector_bytes > self._settings.on_disk_bytes else kind

    def due(self, index: AnyIndex) -> bool:
        """Whether an index should be built anew: worn, or too large for what it is."""
        kind = self.kind(index.size)
        if isinstance(index, FlatIndex):
            return kind != "flat"
        return index.worn or (kind == "mapped" and index.kind == "ivf")

    def empty(self) -> FlatIndex:
        """An index of nothing yet."""
        return FlatIndex(self._dimension, self._settings)

    def build(self, collection: int) -> AnyIndex:
        """An index of the collection's live chunks as they are now. Raises OSError where it has to be on disk."""
        with self._database.read() as transaction:
            live = self._chunks.ids(transaction, collection)
            kind = self.kind(len(live))
            if kind == "mapped":
                return self._build_mapped(transaction, collection, live)
            ids, vectors = self._vectors(transaction, live)
        if kind == "ivf":
            return IVFIndex.train(ids, vectors, self._settings)
        if kind == "hnsw":
            return HNSWIndex.build(ids, vectors, self._settings)
        index = self.empty()
        index.add(ids, vectors)
        return index

    def open_mapped(self, collection: int) -> MappedIVFIndex | None:
        """The collection's index on disk, if there is one of these embeddings. Raises what Faiss does."""
        found = self._mapped.find(collection, self._fingerprint)
        return None if found is None else MappedIVFIndex.open(*found, self._settings)

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

    def _build_mapped(self, transaction: Transaction, collection: int, live: Ids) -> MappedIVFIndex:
        wanted = POINTS_PER_LIST * (self._settings.lists or math.ceil(4 * math.sqrt(len(live))))
        # Evenly over all that came in, for what came together is often alike.
        _, sample = self._vectors(transaction, live[:: max(1, len(live) // wanted)])

        def write(folder: Path) -> Trained:
            parts = self._chunks.vectors(transaction, live, self._dimension)
            most = int(_SHARE_IN_MEMORY * self._settings.on_disk_bytes / self._vector_bytes)
            return write_lists(folder, sample, parts, len(live), most, self._settings)

        published = self._mapped.publish(collection, self._fingerprint, write)
        return MappedIVFIndex.open(*published, self._settings)

    def _vectors(self, transaction: Transaction, ids: Ids) -> tuple[Ids, Vector]:
        parts = list(self._chunks.vectors(transaction, ids, self._dimension))
        if not parts:
            return np.zeros(0, np.int64), np.zeros((0, self._dimension), np.float32)
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
