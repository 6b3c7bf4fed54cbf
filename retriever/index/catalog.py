"""The catalog of indexes: one for each collection, of the kind that fits its size."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import structlog

from retriever.embedding.base import Vector
from retriever.index.base import Ids, TrainedIndex, VectorIndex
from retriever.index.building import IndexBuilder, Kind
from retriever.index.files import IndexFiles, SavedIndex
from retriever.index.flat import FlatIndex
from retriever.settings import IndexSettings
from retriever.store.chunks import Chunks
from retriever.store.database import Database, Transaction

_log = structlog.get_logger(__name__)


class _Entry(NamedTuple):
    vectors: FlatIndex | TrainedIndex
    changes: int


class IndexCatalog:
    """The indexes of all collections, by the collection's key.

    ``get`` may be called by any thread; everything else changes indexes, and belongs to one thread. The store is the
    truth: opening compares each saved index with it id by id, and makes good what differs.
    """

    def __init__(
        self,
        database: Database,
        chunks: Chunks,
        files: IndexFiles,
        dimension: int,
        fingerprint: str,
        settings: IndexSettings,
    ) -> None:
        self._database = database
        self._chunks = chunks
        self._files = files
        self._dimension = dimension
        self._fingerprint = fingerprint
        self._settings = settings
        self._builder = IndexBuilder(dimension, settings)
        self._entries: dict[int, _Entry] = {}

    def get(self, collection: int) -> VectorIndex | None:
        """The collection's index; None while it has no vector."""
        entry = self._entries.get(collection)
        return entry.vectors if entry else None

    def open(self) -> None:
        """Load or build the index of every collection that has chunks."""
        self._files.sweep()
        with self._database.read() as transaction:
            rows = transaction.execute("SELECT DISTINCT collection FROM chunks").fetchall()
        for row in rows:
            self._open(row["collection"])

    def add(self, collection: int, ids: Ids, vectors: Vector) -> None:
        """Add vectors to a collection's index, which is made if there is none."""
        entry = self._entries.get(collection) or _Entry(FlatIndex(self._dimension, self._settings), 0)
        entry.vectors.add(ids, vectors)
        self._entries[collection] = entry._replace(changes=entry.changes + len(ids))

    def remove(self, collection: int, ids: Iterable[int]) -> None:
        """Remove vectors from a collection's index; unknown ids are ignored."""
        entry = self._entries.get(collection)
        gone = np.fromiter(ids, np.int64)
        if entry and len(gone):
            entry.vectors.remove(gone)
            self._entries[collection] = entry._replace(changes=entry.changes + len(gone))

    def grow(self, collection: int) -> None:
        """Train the collection's index if it has become too large for the one it has; searches go on meanwhile."""
        entry = self._entries.get(collection)
        if entry is None:
            return
        if isinstance(entry.vectors, FlatIndex):
            due = self._builder.kind(entry.vectors.size) != FlatIndex.kind
        else:
            due = entry.vectors.worn
        if due:
            with self._database.read() as transaction:
                ids, vectors = self._vectors(self._chunks.ids(transaction, collection), transaction)
            self._entries[collection] = _Entry(self._builder.build(ids, vectors), len(ids))
            _log.info("index built", collection=collection, vectors=len(ids))

    def save(self, at_least: float = 0.1) -> None:
        """Save the trained indexes of which this share has changed; others are rebuilt as quickly as they are loaded.

        A failure is logged and no more, as the store has everything.
        """
        for collection, (index, changes) in list(self._entries.items()):
            if changes <= at_least * index.size or isinstance(index, FlatIndex):
                continue
            try:
                saved = SavedIndex(index.kind, index.trained, index.dump())
                self._files.save(collection, self._fingerprint, saved)
            except OSError as error:
                _log.warning("index not saved", collection=collection, error=str(error))
            else:
                self._entries[collection] = _Entry(index, 0)

    def _open(self, collection: int) -> None:
        with self._database.read() as transaction:
            live = self._chunks.ids(transaction, collection)
            # What was saved under other settings may be of another kind than is asked for now.
            kind = self._builder.kind(len(live))
            index = None if kind == FlatIndex.kind else self._loaded(collection, kind)
            if index is None:
                built = self._builder.build(*self._vectors(live, transaction))
                self._entries[collection] = _Entry(built, len(live))
                return
            held = index.ids()
            missing, gone = np.setdiff1d(live, held), np.setdiff1d(held, live)
            index.remove(gone)
            if len(missing):
                index.add(*self._vectors(missing, transaction))
        self._entries[collection] = _Entry(index, len(missing) + len(gone))

    def _loaded(self, collection: int, kind: Kind) -> TrainedIndex | None:
        saved = self._files.load(collection, self._fingerprint)
        if saved is None or saved.kind != kind:
            return None
        try:
            return self._builder.load(saved)
        except Exception as error:
            # Whole by its checksum, yet of a Faiss that wrote it differently: Faiss raises bare exceptions.
            _log.warning("saved index not readable, built again", collection=collection, error=str(error))
            return None

    def _vectors(self, ids: Ids, transaction: Transaction) -> tuple[Ids, Vector]:
        parts = list(self._chunks.vectors(transaction, ids, self._dimension))
        if not parts:
            return np.zeros(0, np.int64), np.zeros((0, self._dimension), np.float32)
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
