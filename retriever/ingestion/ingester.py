"""The ingester: moves queued documents into the store and the indexes."""

import sqlite3
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

import structlog

from protocol.documents import JobError
from protocol.errors import InternalError, RagtreeError, StorageFull, Unavailable
from retriever.index.catalog import IndexCatalog
from retriever.index.read_write_lock import ReadWriteLock
from retriever.ingestion.chunk_preparer import ChunkPreparer, SourceText, ids_of, vectors_of
from retriever.ingestion.ingest_counts import IngestCounts
from retriever.lexical.lexical_catalog import LexicalCatalog
from retriever.settings import IngestSettings
from retriever.store.database import Database
from retriever.store.documents import Documents
from retriever.store.jobs import ItemResult, JobItem, Jobs
from retriever.store.prepared_chunk import PreparedChunk

_log = structlog.get_logger(__name__)
_TRANSIENT = (Unavailable, StorageFull, sqlite3.Error, OSError)


class Ingester:
    """Ingests the queue in order of arrival, one group of documents at a time. Only it changes the indexes.

    A group becomes visible in one commit. New vectors enter the index before the commit, and old ones leave it after.
    So the store resolves every hit of a concurrent search to one side of the commit. The same commit removes the items
    from the queue, so a crash loses nothing and repeats nothing. ``on_change`` is called with a collection
    after documents have come or gone.
    """

    def __init__(
        self,
        database: Database,
        documents: Documents,
        jobs: Jobs,
        preparer: ChunkPreparer,
        catalog: IndexCatalog,
        lexical: LexicalCatalog,
        replacement_lock: ReadWriteLock,
        settings: IngestSettings,
        counts: IngestCounts,
        on_change: Callable[[int], None] | None = None,
    ) -> None:
        self._database = database
        self._documents = documents
        self._jobs = jobs
        self._preparer = preparer
        self._catalog = catalog
        self._lexical = lexical
        self._replacement_lock = replacement_lock
        self._settings = settings
        self._counts = counts
        self._on_change = on_change
        self._removals: deque[tuple[int, list[int]]] = deque()
        self._group_lock = threading.Lock()

    def remove_from_indexes(self, collection: int, chunk_ids: list[int]) -> None:
        """Schedule the removal of chunks that the store no longer has. Thread-safe."""
        self._removals.append((collection, chunk_ids))

    def ingest_next_group(self) -> bool:
        """Ingest the next group, after pending index updates. Return False if the queue is empty.

        Raises Unavailable, StorageFull or sqlite3.Error if a retry may succeed. The documents then stay queued.
        """
        with self._group_lock:
            self._catalog.install_rebuilt()
            self._remove_scheduled()
            with self._database.read() as transaction:
                group = self._jobs.next_group(transaction, self._settings.group_documents, self._settings.group_bytes)
            if group:
                self._ingest(group)
            else:
                self._catalog.save()
            return bool(group)

    def wait_for_indexes(self) -> None:
        """Return when no index rebuild is pending for what has been ingested. Ingestion continues."""
        # The current group may still request a rebuild.
        with self._group_lock:
            pass
        self._catalog.wait()

    def _ingest(self, group: Sequence[JobItem]) -> None:
        try:
            with self._database.write() as transaction:
                self._jobs.start(transaction, group)
            self._ingest_or_split(group)
        except StorageFull as error:
            _log.error("disk full, jobs failed", jobs=len({item.job_id for item in group}))
            # Removing the queued items frees space, so this commit usually succeeds.
            with self._database.write() as transaction:
                failed = sum(
                    self._jobs.fail_rest(transaction, job_id, error.code, error.message)
                    for job_id in {item.job_id for item in group}
                )
            self._counts.add(["failed"] * failed)
        except Unavailable:
            with self._database.write() as transaction:
                self._jobs.requeue(transaction, group)
            raise

    def _ingest_or_split(self, group: Sequence[JobItem]) -> None:
        try:
            self._prepare_and_commit(group)
        except _TRANSIENT:
            raise
        except Exception as error:
            if len(group) > 1:
                # One document breaks the group. Ingest each alone to find it.
                for item in group:
                    self._ingest_or_split([item])
            else:
                self._fail(group[0], error)

    def _prepare_and_commit(self, group: Sequence[JobItem]) -> None:
        with self._database.read() as transaction:
            unchanged = [
                item
                for item in group
                if self._documents.content_hash(transaction, item.collection, item.document.document_id)
                == item.document.content_hash
            ]
        changed = [item for item in group if item not in unchanged]
        prepared = self._preparer.prepare(
            [SourceText(item.document.text, item.document.title, item.document.triplets) for item in changed]
        )
        results = [ItemResult(item, "unchanged") for item in unchanged]
        results += [ItemResult(item, "stored") for item in changed]
        self._commit(results, {item.seq: chunks for item, chunks in zip(changed, prepared, strict=True)})

    def _commit(self, results: Sequence[ItemResult], prepared: dict[int, list[PreparedChunk]]) -> None:
        """Replace old documents by new ones, all or none."""
        added: dict[int, list[PreparedChunk]] = defaultdict(list)
        removed: dict[int, list[int]] = defaultdict(list)
        with self._replacement_lock.writing():
            try:
                with self._database.write() as transaction:
                    still_queued = self._jobs.still_queued(transaction, [result.item for result in results])
                    for item, _, _ in results:
                        if item.seq in still_queued and item.seq in prepared:
                            chunks = prepared[item.seq]
                            removed[item.collection] += self._documents.put(
                                transaction, item.collection, item.document, chunks, self._preparer.fingerprint
                            )
                            added[item.collection] += chunks
                    finished = [result for result in results if result.item.seq in still_queued]
                    self._jobs.finish(transaction, finished)
                    for collection, chunks in added.items():
                        self._catalog.add(collection, ids_of(chunks), vectors_of(chunks))
                        self._lexical.change(collection, [(chunk.id, chunk.chunk.text) for chunk in chunks])
            except BaseException:
                for collection, chunks in added.items():
                    self.remove_from_indexes(collection, [chunk.id for chunk in chunks])
                raise
            self._counts.add(result.outcome for result in finished)
            for collection, chunk_ids in removed.items():
                self.remove_from_indexes(collection, chunk_ids)
        self._remove_scheduled()
        for collection in added:
            self._catalog.rebuild_if_due(collection)
            self._report(collection)

    def _remove_scheduled(self) -> None:
        """Remove the scheduled chunks. All of a collection share one change of its lexical index.

        If the disk fails, all of them stay scheduled. Raises OSError.
        """
        removed: dict[int, list[int]] = defaultdict(list)
        while self._removals:
            collection, chunk_ids = self._removals.popleft()
            removed[collection] += chunk_ids
        try:
            for collection, chunk_ids in removed.items():
                self._catalog.remove(collection, chunk_ids)
                self._lexical.change(collection, [], chunk_ids)
                self._catalog.rebuild_if_due(collection)
                self._report(collection)
        except OSError:
            # Removing a chunk twice does no harm.
            self._removals.extend(removed.items())
            raise

    def _report(self, collection: int) -> None:
        if self._on_change is not None:
            self._on_change(collection)

    def _fail(self, item: JobItem, error: Exception) -> None:
        if not isinstance(error, RagtreeError):
            _log.error("document not ingested", job=item.job_id, line=item.line, exc_info=error)
            error = InternalError("the document could not be ingested; see the log for details")
        reported = JobError(error.code, error.message, item.document.document_id, item.line)
        self._commit([ItemResult(item, "failed", reported)], {})
