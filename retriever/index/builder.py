"""Choose and build a collection's index from the store."""

import math
from pathlib import Path
from typing import Literal

import faiss
import numpy as np
import structlog

from retriever.embedding.base import Vector
from retriever.index.base import Trained, TrainedIndex
from retriever.index.flat import FlatIndex
from retriever.index.hnsw import HNSWIndex
from retriever.index.index_files import IndexFiles
from retriever.index.ivf import POINTS_PER_LIST, IVFIndex
from retriever.index.mapped_ivf import MappedIVFIndex, write_lists
from retriever.settings import IndexSettings
from retriever.store.chunks import Ids
from retriever.store.database import Transaction
from retriever.store.store import Store

_log = structlog.get_logger(__name__)

Kind = Literal["flat", "ivf", "mapped", "hnsw"]
AnyIndex = FlatIndex | MappedIVFIndex | TrainedIndex

_SHARE_IN_MEMORY = 0.25
"""Building an index on disk holds this share of ``on_disk_bytes`` in memory at once."""


class IndexBuilder:
    """Builds indexes from the store, of the kind that the settings ask for. Thread-safe."""

    def __init__(self, store: Store, files: IndexFiles, dimension: int, settings: IndexSettings) -> None:
        self._store = store
        self._files = files
        self._dimension = dimension
        self._vector_bytes = dimension * np.float32().nbytes
        self._settings = settings

    def kind(self, count: int) -> Kind:
        """Return the kind of index for ``count`` vectors. Without vectors only flat can be built."""
        kind = self._settings.kind
        if kind == "auto":
            kind = "flat" if count < self._settings.tuning.ivf_threshold else "ivf"
        if not count:
            return "flat"
        return "mapped" if kind == "ivf" and count * self._vector_bytes > self._settings.on_disk_bytes else kind

    def needs_rebuild(self, index: AnyIndex) -> bool:
        """Return whether an index has changed too much, or has another kind than its size requires."""
        kind = self.kind(index.size)
        if isinstance(index, FlatIndex):
            return kind != "flat"
        return index.needs_rebuild or (kind == "mapped" and index.kind == "ivf")

    def empty(self) -> FlatIndex:
        """Return an empty index."""
        return FlatIndex(self._dimension, self._settings)

    def build(self, collection: int) -> AnyIndex:
        """Build an index of a collection's live chunks. Raises OSError if it cannot be written to disk."""
        with self._store.database.read() as transaction:
            live = self._store.chunks.ids(transaction, collection)
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

    def load(self, collection: int, count: int) -> MappedIVFIndex | TrainedIndex | None:
        """Return a collection's index on disk, or None if there is none of the kind for its ``count`` vectors."""
        kind = self.kind(count)
        try:
            if kind == MappedIVFIndex.kind:
                found = self._files.find_mapped(collection)
                return None if found is None else MappedIVFIndex.open(*found, self._settings)
            self._files.discard_mapped(collection)
            saved = None if kind == FlatIndex.kind else self._files.load(collection)
            if saved is None or saved.kind != kind:
                return None
            implementation = HNSWIndex if kind == HNSWIndex.kind else IVFIndex
            index = faiss.deserialize_index(np.frombuffer(saved.dump, np.uint8))
            return implementation(index, saved.trained, self._settings)
        except Exception as error:
            # Another Faiss version may have written it. Faiss raises bare exceptions.
            _log.warning("saved index not readable, rebuilding", collection=collection, error=str(error))
            return None

    def reconcile(self, index: AnyIndex, collection: int) -> int:
        """Add and remove vectors so that the index holds exactly the live chunks. Return how many changed."""
        with self._store.database.read() as transaction:
            live, held = self._store.chunks.ids(transaction, collection), index.ids()
            missing, stale = np.setdiff1d(live, held), np.setdiff1d(held, live)
            index.remove(stale)
            if len(missing):
                index.add(*self._vectors(transaction, missing))
        return len(missing) + len(stale)

    def _build_mapped(self, transaction: Transaction, collection: int, live: Ids) -> MappedIVFIndex:
        sample_size = POINTS_PER_LIST * (self._settings.tuning.lists or math.ceil(4 * math.sqrt(len(live))))
        # Sample evenly over all ids, because neighbouring chunks are often similar.
        _, sample = self._vectors(transaction, live[:: max(1, len(live) // sample_size)])

        def write(folder: Path) -> Trained:
            parts = self._store.chunks.vectors(transaction, live)
            most = int(_SHARE_IN_MEMORY * self._settings.on_disk_bytes / self._vector_bytes)
            return write_lists(folder, sample, parts, len(live), most, self._settings)

        saved = self._files.save_mapped(collection, write)
        return MappedIVFIndex.open(*saved, self._settings)

    def _vectors(self, transaction: Transaction, ids: Ids) -> tuple[Ids, Vector]:
        found, vectors, size = np.empty(len(ids), np.int64), np.empty((len(ids), self._dimension), np.float32), 0
        # Each part is copied when it is read, so that they do not lie in memory twice.
        for part, of_part in self._store.chunks.vectors(transaction, ids):
            found[size : size + len(part)], vectors[size : size + len(part)] = part, of_part
            size += len(part)
        return found[:size], vectors[:size]
