"""The ingester: takes accepted documents out of the queue and puts them into store and indexes."""

import sqlite3
import threading
from collections import defaultdict, deque
from collections.abc import Sequence

import structlog

from protocol.documents import JobError
from protocol.errors import InternalError, RagtreeError, StorageFull, Unavailable
from retriever.index.catalog import IndexCatalog
from retriever.index.lock import ReadWriteLock
from retriever.ingestion.ingest_counts import IngestCounts
from retriever.ingestion.preparing import Preparer, SourceText, ids_of, vectors_of
from retriever.settings import IngestSettings
from retriever.store.database import Database
from retriever.store.documents import Documents, PreparedChunk
from retriever.store.jobs import ItemResult, JobItem, Jobs

_log = structlog.get_logger(__name__)
_WILL_PASS = (Unavailable, StorageFull, sqlite3.Error, OSError)


class Ingester:
    """Works the queue off in the order of arrival, a group of documents at a time, and alone changes the indexes.

    A group becomes visible in one commit. New vectors are in the index before it and old ones until after it: whatever
    a search finds meanwhile, the store resolves it to the documents as they are on one side of the commit. The queue's
    items go in the same commit, so that after a crash nothing is lost and nothing done twice.
    """

    def __init__(
        self,
        database: Database,
        documents: Documents,
        jobs: Jobs,
        preparer: Preparer,
        catalog: IndexCatalog,
        switching: ReadWriteLock,
        settings: IngestSettings,
        counts: IngestCounts,
    ) -> None:
        self._database = database
        self._documents = documents
        self._jobs = jobs
        self._preparer = preparer
        self._catalog = catalog
        self._switching = switching
        self._settings = settings
        self._counts = counts
        self._removals: deque[tuple[int, list[int]]] = deque()
        self._stepping = threading.Lock()

    def forget(self, collection: int, chunk_ids: list[int]) -> None:
        """Note that the indexes still hold chunks which the store no longer has; any thread may call this."""
        self._removals.append((collection, chunk_ids))

    def step(self) -> bool:
        """Do the next group, after what the indexes have to be told; false if there was none.

        Raises Unavailable, StorageFull or sqlite3.Error where the same step may succeed later; its documents stay
        queued.
        """
        with self._stepping:
            self._catalog.adopt()
            while self._removals:
                collection, chunk_ids = self._removals.popleft()
                self._catalog.remove(collection, chunk_ids)
                self._catalog.renew(collection)
            with self._database.read() as transaction:
                group = self._jobs.next_group(transaction, self._settings.group_documents, self._settings.group_bytes)
            if group:
                self._do(group)
            else:
                self._catalog.save()
            return bool(group)

    def settle(self) -> None:
        """Return when the indexes are what they should be for all that has gone in; the steps go on in their thread."""
        # The step in hand may yet find that an index should be built anew.
        with self._stepping:
            pass
        self._catalog.wait()

    def _do(self, group: Sequence[JobItem]) -> None:
        try:
            with self._database.write() as transaction:
                self._jobs.start(transaction, group)
            self._ingest(group)
        except StorageFull as error:
            _log.error("disk full, jobs given up", jobs=len({item.job_id for item in group}))
            # Taking the rest out of the queue frees room, so this commit mostly succeeds where the other did not.
            with self._database.write() as transaction:
                given_up = sum(
                    self._jobs.fail_rest(transaction, job_id, error.code, error.message)
                    for job_id in {item.job_id for item in group}
                )
            self._counts.add(["failed"] * given_up)
        except Unavailable:
            with self._database.write() as transaction:
                self._jobs.pause(transaction, group)
            raise

    def _ingest(self, group: Sequence[JobItem]) -> None:
        try:
            self._store(group)
        except _WILL_PASS:
            raise
        except Exception as error:
            if len(group) > 1:
                # One document spoils the group: alone, each shows whether it is the one.
                for item in group:
                    self._ingest([item])
            else:
                self._fail(group[0], error)

    def _store(self, group: Sequence[JobItem]) -> None:
        with self._database.read() as transaction:
            unchanged = [
                item
                for item in group
                if self._documents.content_hash(transaction, item.collection, item.document.document_id)
                == item.document.content_hash
            ]
        changed = [item for item in group if item not in unchanged]
        prepared = self._preparer.prepare([SourceText(item.document.text, item.document.title) for item in changed])
        results = [ItemResult(item, "unchanged") for item in unchanged]
        results += [ItemResult(item, "stored") for item in changed]
        self._switch(results, {item.seq: chunks for item, chunks in zip(changed, prepared, strict=True)})

    def _switch(self, results: Sequence[ItemResult], prepared: dict[int, list[PreparedChunk]]) -> None:
        """Put new documents in the place of old ones, all or none."""
        added: dict[int, list[PreparedChunk]] = defaultdict(list)
        displaced: dict[int, list[int]] = defaultdict(list)
        with self._switching.writing():
            try:
                with self._database.write() as transaction:
                    pending = self._jobs.pending(transaction, [result.item for result in results])
                    for item, _, _ in results:
                        if item.seq in pending and item.seq in prepared:
                            chunks = prepared[item.seq]
                            displaced[item.collection] += self._documents.put(
                                transaction, item.collection, item.document, chunks, self._preparer.fingerprint
                            )
                            added[item.collection] += chunks
                    finished = [result for result in results if result.item.seq in pending]
                    self._jobs.finish(transaction, finished)
                    for collection, chunks in added.items():
                        self._catalog.add(collection, ids_of(chunks), vectors_of(chunks))
            except BaseException:
                for collection, chunks in added.items():
                    self._catalog.remove(collection, (chunk.id for chunk in chunks))
                raise
            self._counts.add(result.outcome for result in finished)
            for collection, chunk_ids in displaced.items():
                self._catalog.remove(collection, chunk_ids)
        for collection in added:
            self._catalog.renew(collection)

    def _fail(self, item: JobItem, error: Exception) -> None:
        if not isinstance(error, RagtreeError):
            _log.error("document not ingested", job=item.job_id, line=item.line, exc_info=error)
            error = InternalError("the document could not be ingested; the log has the details")
        reported = JobError(error.code, error.message, item.document.document_id, item.line)
        self._switch([ItemResult(item, "failed", reported)], {})
