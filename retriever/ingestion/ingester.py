"""The ingester: moves queued documents into the store and the indexes."""

import sqlite3
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import structlog

from protocol.documents import JobError
from protocol.errors import IngestionAbandoned, InternalError, RagtreeError, StorageFull, Unavailable
from protocol.repeating import MOST_ATTEMPTS
from retriever.index.catalog import IndexCatalog
from retriever.ingestion.chunk_preparer import ChunkPreparer
from retriever.ingestion.committer import Committer
from retriever.settings import Pace
from retriever.store.incoming import IncomingDocument, PreparedChunk, SourceText
from retriever.store.jobs import ItemResult, JobItem
from retriever.store.store import Store

_log = structlog.get_logger(__name__)
_TRANSIENT = (Unavailable, StorageFull, sqlite3.Error, OSError)


class LongDocument:
    """Stages the chunks of a queued document part by part. Groups of other documents may come between two parts."""

    def __init__(self, store: Store, preparer: ChunkPreparer, item: JobItem, document: IncomingDocument) -> None:
        self.item = item
        self.document = document
        self._store = store
        self._parts = preparer.parts(SourceText(document.text, document.title, document.triplets))
        self._part: list[PreparedChunk] | None = None
        self._position = 0

    def stage_part(self) -> bool:
        """Prepare and stage the next part. Return False if all are staged, or the document is no longer queued.

        After an error, the same part is tried again. Raises as ``ChunkPreparer.prepare``, StorageFull, sqlite3.Error.
        """
        if self._part is None:
            self._part = self._parts.next()
        with self._store.database.write() as transaction:
            if not self._part or not self._store.jobs.still_queued(transaction, [self.item]):
                return False
            self._store.documents.stage(transaction, self.item.seq, self._position, self._part)
        self._position += len(self._part)
        self._part = None
        return True


class _Turn(NamedTuple):
    """A tenant's next group."""

    tenant: str
    group: Sequence[JobItem]


class _Queued(NamedTuple):
    item: JobItem
    document: IncomingDocument


class Ingester:
    """Ingests the queue, one group of documents at a time. Only it changes the indexes.

    Tenants take turns. A group has documents of one tenant, in order of arrival.

    A document that is too long for a group is prepared in parts, between which groups of short documents after it are
    ingested. An attempt at each document is recorded before it begins. A document that a process did not survive is
    tried alone, and fails after ``MOST_ATTEMPTS`` of them.
    """

    def __init__(
        self, store: Store, preparer: ChunkPreparer, catalog: IndexCatalog, committer: Committer, pace: Pace
    ) -> None:
        self._store = store
        self._attempts = committer.attempts
        self._preparer = preparer
        self._catalog = catalog
        self._committer = committer
        self._pace = pace
        self._long: LongDocument | None = None
        self._long_is_next = False
        self._last_tenant = ""
        self._group_lock = threading.Lock()

    def open(self) -> None:
        """Drop what an earlier process has staged. Raises StorageFull."""
        with self._store.database.write() as transaction:
            self._store.documents.drop_staged(transaction)

    def ingest_next_group(self) -> bool:
        """Ingest the next group, or a part of a long document, after pending index updates.

        Return False if the queue is empty. Raises Unavailable, StorageFull, OSError or sqlite3.Error if a retry may
        succeed. The documents then stay queued.
        """
        with self._group_lock:
            self._catalog.install_rebuilt()
            self._committer.remove_scheduled()
            turn = self._next_turn()
            if self._long and (self._long_is_next or turn is None):
                self._long_is_next = False
                self._try([self._long.item])
            elif turn is not None:
                self._long_is_next = True
                self._last_tenant = turn.tenant
                self._try(turn.group)
            else:
                self._catalog.save()
                return False
            return True

    def wait_for_indexes(self) -> None:
        """Return when no index rebuild is pending for what has been ingested. Ingestion continues."""
        # The current group may still request a rebuild.
        with self._group_lock:
            pass
        self._catalog.wait()

    def close(self) -> None:
        """Take back the attempts at what is not done, because this process has survived them."""
        # Without it, an attempt too many counts. The rest of the retriever still closes.
        with suppress(RagtreeError, sqlite3.Error), self._store.database.write() as transaction:
            self._attempts.take_back(transaction)

    def _next_turn(self) -> _Turn | None:
        with self._store.database.read() as transaction:
            suspects = self._attempts.lost(transaction)
            for tenant in self._store.jobs.waiting_tenants(transaction, after=self._last_tenant):
                group = self._store.jobs.next_group(
                    transaction,
                    tenant,
                    self._pace.group_documents,
                    self._pace.group_bytes,
                    suspects,
                    only_short=self._long is not None,
                )
                if group:
                    return _Turn(tenant, group)
        return None

    def _try(self, group: Sequence[JobItem]) -> None:
        try:
            with self._store.database.write() as transaction:
                lost = self._attempts.lost(transaction).get(group[0].seq, 0)
                # Documents that an earlier call tried, and left undone, would not be to blame if this one ended.
                self._attempts.take_back(transaction)
                self._attempts.begin(transaction, [item.seq for item in group])
                self._store.jobs.mark(transaction, group, "in_progress")
            if lost >= MOST_ATTEMPTS:
                reason = f"the retriever ended {lost} times while it ingested this document; it is not tried again"
                self._fail(group[0], IngestionAbandoned(reason))
            else:
                self._ingest_or_split(group)
        except StorageFull as error:
            self._fail_jobs(group, error)
        except Unavailable:
            with self._store.database.write() as transaction:
                self._store.jobs.mark(transaction, group, "queued")
            raise

    def _ingest_or_split(self, group: Sequence[JobItem]) -> None:
        try:
            self._ingest(group)
        except _TRANSIENT:
            raise
        except Exception as error:
            if len(group) > 1:
                # One document breaks the group. Ingest each alone to find it.
                for item in group:
                    self._ingest_or_split([item])
            else:
                self._fail(group[0], error)

    def _ingest(self, group: Sequence[JobItem]) -> None:
        if self._long and self._long.item == group[0]:
            self._ingest_part(self._long)
            return
        queued, unchanged = self._read(group)
        if len(group) == 1 and queued and group[0].bytes > self._pace.group_bytes:
            self._long = LongDocument(self._store, self._preparer, *queued[0])
            self._ingest_part(self._long)
            return
        prepared = self._preparer.prepare(
            [SourceText(document.text, document.title, document.triplets) for _, document in queued]
        )
        results = [ItemResult(item, "unchanged") for item in unchanged]
        results += [ItemResult(item, "stored") for item, _ in queued]
        self._committer.commit_group(
            results,
            {item.seq: (document, chunks) for (item, document), chunks in zip(queued, prepared, strict=True)},
        )

    def _read(self, group: Sequence[JobItem]) -> tuple[list[_Queued], list[JobItem]]:
        """Return the documents of a group that are still queued, and the items of those that are stored already."""
        changed: list[_Queued] = []
        unchanged: list[JobItem] = []
        with self._store.database.read() as transaction:
            for item in group:
                document = self._store.jobs.document(transaction, item)
                if document is None:
                    continue
                stored = self._store.documents.content_hash(transaction, item.collection, item.document_id)
                if stored == document.content_hash:
                    unchanged.append(item)
                else:
                    changed.append(_Queued(item, document))
        return changed, unchanged

    def _ingest_part(self, long: LongDocument) -> None:
        if not long.stage_part():
            self._committer.commit_staged(long.item, long.document)
            self._long = None

    def _fail(self, item: JobItem, error: Exception) -> None:
        if self._long and self._long.item == item:
            self._long = None
        if isinstance(error, MemoryError):
            error = IngestionAbandoned("the retriever has too little memory for this document")
        if not isinstance(error, RagtreeError):
            _log.error("document not ingested", job=item.job_id, line=item.line, exc_info=error)
            error = InternalError("the document could not be ingested; see the log for details")
        reported = JobError(error.code, error.message, item.document_id, item.line)
        self._committer.commit_group([ItemResult(item, "failed", reported)], {})

    def _fail_jobs(self, group: Sequence[JobItem], error: StorageFull) -> None:
        """Fail all that is queued of a group's jobs. That frees space, so the commit usually succeeds."""
        jobs = {item.job_id for item in group}
        _log.error("disk full, jobs failed", jobs=len(jobs))
        with self._store.database.write() as transaction:
            failed = sum(self._store.jobs.fail_rest(transaction, job_id, error.code, error.message) for job_id in jobs)
        if self._long and self._long.item.job_id in jobs:
            self._long = None
        self._committer.counts.add(["failed"] * failed)
