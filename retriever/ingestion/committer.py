"""The commit that makes documents visible: in the store, in the indexes and in their jobs."""

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

import numpy as np

from retriever.index.catalog import IndexCatalog
from retriever.index.read_write_lock import ReadWriteLock
from retriever.lexical.lexical_catalog import LexicalCatalog
from retriever.store.attempts import Attempts
from retriever.store.database import Transaction
from retriever.store.documents import Replaced
from retriever.store.incoming import IncomingDocument, PreparedChunk
from retriever.store.jobs import ItemResult, JobItem, Outcome
from retriever.store.store import Store

Put = Callable[[Transaction, JobItem], Replaced]
"""Stores the document of an item."""


class IngestCounts:
    """Counts documents by outcome. Thread-safe. Count only what is committed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counter[Outcome]({"stored": 0, "unchanged": 0, "failed": 0})

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Count one document per outcome."""
        with self._lock:
            self._counts.update(outcomes)

    def snapshot(self) -> dict[str, int]:
        """Return the current counts by outcome. Every outcome is always present."""
        with self._lock:
            return dict(self._counts.items())


class Committer:
    """Commits results of items, all or none, and keeps the indexes equal to the store. One thread commits.

    New chunks enter the indexes before the commit, and old ones leave them after. So the store resolves every hit of a
    concurrent search to one side of the commit. The same commit removes the items from the queue, so a crash loses
    nothing and repeats nothing. ``on_change`` is called with a collection after documents have come or gone.
    ``attempts`` are those at items of the queue, and ``counts`` their outcomes.
    """

    def __init__(
        self,
        store: Store,
        catalog: IndexCatalog,
        lexical: LexicalCatalog,
        replacement_lock: ReadWriteLock,
        fingerprint: str,
        on_change: Callable[[int], None] | None = None,
    ) -> None:
        self.attempts = Attempts("item")
        self.counts = IngestCounts()
        self._store = store
        self._catalog = catalog
        self._lexical = lexical
        self._replacement_lock = replacement_lock
        self._fingerprint = fingerprint
        self._on_change = on_change
        self._removals: deque[tuple[int, list[int]]] = deque()

    def remove_from_indexes(self, collection: int, chunk_ids: list[int]) -> None:
        """Schedule the removal of chunks that the store no longer has. Thread-safe."""
        self._removals.append((collection, chunk_ids))

    def commit_group(
        self,
        results: Sequence[ItemResult],
        prepared: Mapping[int, tuple[IncomingDocument, Sequence[PreparedChunk]]],
    ) -> None:
        """Commit results, and the documents that ``prepared`` has, with their chunks, by the ``seq`` of an item."""

        def put(transaction: Transaction, item: JobItem) -> Replaced:
            if item.seq not in prepared:
                return Replaced([], [])
            document, chunks = prepared[item.seq]
            removed = self._store.documents.put(transaction, item.collection, document, chunks, self._fingerprint)
            return Replaced(removed, [chunk.id for chunk in chunks])

        self._commit(results, put)

    def commit_staged(self, item: JobItem, document: IncomingDocument) -> None:
        """Commit a document, all of whose chunks are staged."""

        def put(transaction: Transaction, item: JobItem) -> Replaced:
            return self._store.documents.put_staged(transaction, item.collection, document, item.seq, self._fingerprint)

        self._commit([ItemResult(item, "stored")], put)

    def remove_scheduled(self) -> None:
        """Remove the scheduled chunks. All of a collection share one change of its lexical index.

        If the disk fails, all stay scheduled. Raises OSError.
        """
        removed: dict[int, list[int]] = defaultdict(list)
        while self._removals:
            collection, chunk_ids = self._removals.popleft()
            removed[collection] += chunk_ids
        try:
            for collection, chunk_ids in removed.items():
                self._catalog.remove(collection, chunk_ids)
                self._lexical.remove(collection, chunk_ids)
                self._changed(collection)
        except OSError:
            # Removing a chunk twice does no harm.
            self._removals.extend(removed.items())
            raise

    def _commit(self, results: Sequence[ItemResult], put: Put) -> None:
        added: dict[int, list[int]] = defaultdict(list)
        removed: dict[int, list[int]] = defaultdict(list)
        with self._replacement_lock.writing():
            try:
                with self._store.database.write() as transaction:
                    still_queued = self._store.jobs.still_queued(transaction, [result.item for result in results])
                    finished = [result for result in results if result.item.seq in still_queued]
                    for item, _, _ in finished:
                        replaced = put(transaction, item)
                        removed[item.collection] += replaced.removed
                        added[item.collection] += replaced.added
                    self._store.jobs.finish(transaction, finished)
                    self.attempts.forget(transaction, [result.item.seq for result in results])
                    for collection, chunk_ids in added.items():
                        self._index(transaction, collection, chunk_ids)
            except BaseException:
                for collection, chunk_ids in added.items():
                    self.remove_from_indexes(collection, chunk_ids)
                raise
            self.counts.add(result.outcome for result in finished)
            for collection, chunk_ids in removed.items():
                self.remove_from_indexes(collection, chunk_ids)
        self.remove_scheduled()
        for collection, chunk_ids in added.items():
            if chunk_ids:
                self._changed(collection)

    def _index(self, transaction: Transaction, collection: int, chunk_ids: Sequence[int]) -> None:
        """Add chunks to the indexes as the store has them, some at a time."""
        if not chunk_ids:
            return
        ids = np.array(chunk_ids, np.int64)
        self._lexical.add(collection, chain.from_iterable(self._store.chunks.texts(transaction, ids)))
        for part, vectors in self._store.chunks.vectors(transaction, ids):
            self._catalog.add(collection, part, vectors)

    def _changed(self, collection: int) -> None:
        self._catalog.rebuild_if_due(collection)
        if self._on_change is not None:
            self._on_change(collection)
