"""The catalog of indexes: one for each collection, of the kind that fits its size."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import structlog

from retriever.embedding.base import Vector
from retriever.index.base import Ids, TrainedIndex, VectorIndex
from retriever.index.building import AnyIndex, IndexBuilder
from retriever.index.files import IndexFiles, SavedIndex
from retriever.index.flat import FlatIndex
from retriever.index.mapped import MappedIVFIndex
from retriever.index.mapped_files import MappedFiles
from retriever.index.rebuilder import Rebuilder
from retriever.store.chunks import Chunks
from retriever.store.database import Database

_log = structlog.get_logger(__name__)


class _Entry(NamedTuple):
    vectors: AnyIndex
    changes: int


class IndexCatalog:
    """The indexes of all collections, by the collection's key.

    ``get`` and ``wait`` may be called by any thread; everything else changes indexes, and belongs to one thread. The
    store is the truth: an index that was loaded, or built in the background, is compared with it id by id, and what
    differs is made good before a search sees it.
    """

    def __init__(
        self,
        database: Database,
        chunks: Chunks,
        files: IndexFiles,
        mapped: MappedFiles,
        builder: IndexBuilder,
        rebuilder: Rebuilder,
        fingerprint: str,
    ) -> None:
        self._database = database
        self._chunks = chunks
        self._files = files
        self._mapped = mapped
        self._builder = builder
        self._rebuilder = rebuilder
        self._fingerprint = fingerprint
        self._entries: dict[int, _Entry] = {}

    def get(self, collection: int) -> VectorIndex | None:
        """The collection's index; None while it has no vector."""
        entry = self._entries.get(collection)
        return entry.vectors if entry else None

    def open(self) -> None:
        """Load or build the index of every collection that has chunks."""
        self._files.sweep()
        self._mapped.sweep()
        with self._database.read() as transaction:
            collections = self._chunks.collections(transaction)
            counts = [self._chunks.count(transaction, collection) for collection in collections]
        for collection, count in zip(collections, counts, strict=True):
            index = self._loaded(collection, count)
            if index is None:
                self._entries[collection] = _Entry(self._builder.build(collection), count)
            else:
                self._entries[collection] = _Entry(index, self._builder.reconcile(index, collection))
            self.renew(collection)

    def add(self, collection: int, ids: Ids, vectors: Vector) -> None:
        """Add vectors to a collection's index, which is made if there is none. Raises InvalidRequest."""
        entry = self._entries.get(collection) or _Entry(self._builder.empty(), 0)
        entry.vectors.add(ids, vectors)
        self._entries[collection] = entry._replace(changes=entry.changes + len(ids))

    def remove(self, collection: int, ids: Iterable[int]) -> None:
        """Remove vectors from a collection's index; unknown ids are ignored."""
        entry = self._entries.get(collection)
        gone = np.fromiter(ids, np.int64)
        if entry and len(gone):
            entry.vectors.remove(gone)
            self._entries[collection] = entry._replace(changes=entry.changes + len(gone))

    def renew(self, collection: int) -> None:
        """Have the collection's index built anew in the background, if that is due."""
        entry = self._entries.get(collection)
        if entry and self._builder.due(entry.vectors):
            self._rebuilder.want(collection)

    def adopt(self) -> None:
        """Put what was built in the background in its place, in one step for every search."""
        self._rebuilder.adopt(self._take_over)

    def wait(self) -> None:
        """Return when no index is being built, or waits to be adopted."""
        self._rebuilder.wait()

    def save(self, at_least: float = 0.1) -> None:
        """Save the indexes in memory of which this share has changed, but those that are built as quickly as loaded.

        A failure is logged and no more, as the store has everything.
        """
        for collection, (index, changes) in list(self._entries.items()):
            if changes <= at_least * index.size or isinstance(index, FlatIndex | MappedIVFIndex):
                continue
            try:
                saved = SavedIndex(index.kind, index.trained, index.dump())
                self._files.save(collection, self._fingerprint, saved)
            except OSError as error:
                _log.warning("index not saved", collection=collection, error=str(error))
            else:
                self._entries[collection] = _Entry(index, 0)

    def close(self) -> None:
        """Save what has changed, and build no more."""
        self.save(at_least=0)
        self._rebuilder.close()

    def _take_over(self, collection: int, index: AnyIndex) -> None:
        self._builder.reconcile(index, collection)
        self._entries[collection] = _Entry(index, index.size)
        _log.info("index built", collection=collection, kind=index.kind, vectors=index.size)
        # It may have been outgrown while it was built.
        self.renew(collection)

    def _loaded(self, collection: int, count: int) -> MappedIVFIndex | TrainedIndex | None:
        """The index on disk; what was saved under other settings may be of another kind than is asked for now."""
        kind = self._builder.kind(count)
        try:
            if kind == MappedIVFIndex.kind:
                return self._builder.open_mapped(collection)
            self._mapped.discard(collection)
            saved = None if kind == FlatIndex.kind else self._files.load(collection, self._fingerprint)
            return self._builder.load(saved) if saved and saved.kind == kind else None
        except Exception as error:
            # Whole by its checksum, yet of a Faiss that wrote it differently: Faiss raises bare exceptions.
            _log.warning("saved index not readable, built again", collection=collection, error=str(error))
            return None
