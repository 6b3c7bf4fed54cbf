"""The catalog: one index per collection, of the kind that fits its size, rebuilt in the background."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import structlog

from retriever.embedding.base import Vector
from retriever.index.base import VectorIndex
from retriever.index.builder import AnyIndex, IndexBuilder
from retriever.index.flat import FlatIndex
from retriever.index.index_files import IndexFiles, SavedIndex
from retriever.index.mapped_ivf import MappedIVFIndex
from retriever.machine import lower_priority
from retriever.store.chunks import Ids
from retriever.store.store import Store

_log = structlog.get_logger(__name__)
_RETRY_AFTER_S = 60.0


class Rebuilder:
    """Rebuilds the indexes of collections in the background, one at a time.

    One thread requests and installs rebuilds. ``built`` is set whenever one is ready to install. A build that fails is
    logged and not retried for a minute. Nothing remains of a build if the process dies.
    """

    def __init__(
        self, builder: IndexBuilder, built: threading.Event, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._builder = builder
        self._on_built = built
        self._clock = clock
        self._pool = ThreadPoolExecutor(1, "retriever-rebuild", initializer=lower_priority)
        self._changed = threading.Condition()
        self._requested: set[int] = set()
        self._retry_at: dict[int, float] = {}
        self._built: deque[tuple[int, AnyIndex]] = deque()

    def request(self, collection: int) -> None:
        """Request a rebuild, unless one is pending or has failed recently."""
        with self._changed:
            if collection in self._requested or self._clock() < self._retry_at.get(collection, 0.0):
                return
            self._requested.add(collection)
        self._pool.submit(self._build, collection)

    def install_rebuilt(self, install: Callable[[int, AnyIndex], None]) -> None:
        """Pass each finished (collection, index) to ``install`` once. If that fails, the build is repeated later."""
        while self._built:
            collection, index = self._built.popleft()
            # Hold the lock throughout: ``install`` may request another rebuild, which ``wait`` must not miss.
            with self._changed:
                self._end(collection)
                try:
                    install(collection, index)
                except Exception as error:
                    self._failed(collection, error)

    def wait(self) -> None:
        """Return when no rebuild is running or waiting to be installed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._requested)

    def close(self) -> None:
        """Drop all requests. A running build is awaited and discarded."""
        self._pool.shutdown(cancel_futures=True)
        with self._changed:
            self._requested.clear()
            self._changed.notify_all()

    def _build(self, collection: int) -> None:
        try:
            index = self._builder.build(collection)
        except Exception as error:
            self._failed(collection, error)
        else:
            self._built.append((collection, index))
            self._on_built.set()

    def _failed(self, collection: int, error: Exception) -> None:
        _log.error("index rebuild failed, retrying later", collection=collection, exc_info=error)
        self._retry_at[collection] = self._clock() + _RETRY_AFTER_S
        self._end(collection)

    def _end(self, collection: int) -> None:
        with self._changed:
            self._requested.discard(collection)
            self._changed.notify_all()


class _Entry(NamedTuple):
    vectors: AnyIndex
    changes: int


class IndexCatalog:
    """The indexes of all collections, by collection key.

    Any thread may call ``get`` and ``wait``. All other methods change indexes and belong to one thread. The store is
    the source of truth: an index that was loaded or rebuilt is compared with it id by id, and corrected before any
    search.
    """

    def __init__(self, store: Store, files: IndexFiles, builder: IndexBuilder, rebuilder: Rebuilder) -> None:
        self._store = store
        self._files = files
        self._builder = builder
        self._rebuilder = rebuilder
        self._entries: dict[int, _Entry] = {}

    def get(self, collection: int) -> VectorIndex | None:
        """Return a collection's index, or None if it has none."""
        entry = self._entries.get(collection)
        return entry.vectors if entry else None

    def open(self) -> None:
        """Load or build the index of every collection that has chunks."""
        self._files.sweep()
        with self._store.database.read() as transaction:
            counts = self._store.chunks.collections(transaction)
        for collection, count in counts.items():
            index = self._builder.load(collection, count)
            if index is None:
                self._entries[collection] = _Entry(self._builder.build(collection), count)
            else:
                self._entries[collection] = _Entry(index, self._builder.reconcile(index, collection))
            self.rebuild_if_due(collection)

    def add(self, collection: int, ids: Ids, vectors: Vector) -> None:
        """Add vectors to a collection's index, creating it if necessary. Raises InvalidRequest."""
        entry = self._entries.get(collection) or _Entry(self._builder.empty(), 0)
        entry.vectors.add(ids, vectors)
        self._entries[collection] = entry._replace(changes=entry.changes + len(ids))

    def remove(self, collection: int, ids: Iterable[int]) -> None:
        """Remove vectors from a collection's index. Unknown ids are ignored."""
        entry = self._entries.get(collection)
        removed = np.fromiter(ids, np.int64)
        if entry and len(removed):
            entry.vectors.remove(removed)
            self._entries[collection] = entry._replace(changes=entry.changes + len(removed))

    def rebuild_if_due(self, collection: int) -> None:
        """Rebuild a collection's index in the background if it needs it."""
        entry = self._entries.get(collection)
        if entry and self._builder.needs_rebuild(entry.vectors):
            self._rebuilder.request(collection)

    def install_rebuilt(self) -> None:
        """Replace indexes by their rebuilt versions. Each replacement is atomic for searches."""
        self._rebuilder.install_rebuilt(self._install)

    def wait(self) -> None:
        """Return when no rebuild is running or waiting to be installed."""
        self._rebuilder.wait()

    def save(self, at_least: float = 0.1) -> None:
        """Save the trained indexes in memory of which more than the share ``at_least`` has changed.

        A failure is only logged, because the store has everything. Flat indexes are not saved: building them is as fast
        as loading. Mapped indexes are on disk already.
        """
        for collection, (index, changes) in list(self._entries.items()):
            if changes <= at_least * index.size or isinstance(index, FlatIndex | MappedIVFIndex):
                continue
            try:
                self._files.save(collection, SavedIndex(index.kind, index.trained, index.dump()))
            except OSError as error:
                _log.warning("index not saved", collection=collection, error=str(error))
            else:
                self._entries[collection] = _Entry(index, 0)

    def close(self) -> None:
        """Save all changes and stop rebuilding."""
        self.save(at_least=0)
        self._rebuilder.close()

    def _install(self, collection: int, index: AnyIndex) -> None:
        self._builder.reconcile(index, collection)
        self._entries[collection] = _Entry(index, index.size)
        _log.info("index built", collection=collection, kind=index.kind, vectors=index.size)
        # The collection may have outgrown it during the build.
        self.rebuild_if_due(collection)
