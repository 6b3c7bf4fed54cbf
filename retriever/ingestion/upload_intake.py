"""The intake of changes: uploads become durable jobs, deletions apply at once."""

from typing import NamedTuple

import msgspec
from blake3 import blake3
from msgspec import UNSET

from protocol.documents import DocumentUpload, IngestJob
from protocol.errors import Overloaded, UnknownDocument
from retriever.ingestion.committer import Committer, IngestCounts
from retriever.ingestion.document_checks import ParsedBatch, checked_document, checked_name, parse_batch
from retriever.ingestion.ingester import Ingester
from retriever.loaders.registry import LoaderRegistry
from retriever.settings import IngestSettings
from retriever.store.store import Store
from retriever.work_thread import WorkThread


def body_hash(collection: str, body: DocumentUpload | bytes) -> str:
    """Return the hash that two uploads under one idempotency key must share."""
    return blake3(msgspec.msgpack.encode((collection, body))).hexdigest()


class UploadIntake:
    """Records uploads and deletions in the store. When a call returns, its change survives a crash."""

    def __init__(self, store: Store, loaders: LoaderRegistry, committer: Committer, settings: IngestSettings) -> None:
        self._store = store
        self._loaders = loaders
        self._committer = committer
        self._settings = settings

    def put_document(self, tenant: str, collection: str, upload: DocumentUpload, key: str | None) -> IngestJob:
        """Create a job that ingests a document.

        Raises the loader's errors, InvalidRequest, StorageFull, IdempotencyMismatch, and Overloaded for a full queue.
        """
        loaded = self._loaders.load(upload.content, upload.media_type, upload.filename or upload.document_id)
        document = checked_document(
            upload.document_id,
            loaded.text,
            upload.filename,
            upload.title or loaded.title,
            upload.attributes,
            loaded.pages,
            () if upload.triplets is UNSET else upload.triplets,
        )
        return self._create_job(
            tenant, collection, ParsedBatch([(None, document)], []), key, body_hash(collection, upload)
        )

    def put_batch(self, tenant: str, collection: str, jsonl: bytes, key: str | None) -> IngestJob:
        """Create a job that ingests a batch of documents.

        Raises as ``parse_batch``, StorageFull, IdempotencyMismatch, and Overloaded if the queue is full.
        """
        return self._create_job(tenant, collection, parse_batch(jsonl), key, body_hash(collection, jsonl))

    def delete_document(self, tenant: str, collection: str, document_id: str) -> None:
        """Delete a document and its queued uploads. Raises UnknownCollection or UnknownDocument."""
        with self._store.database.write() as transaction:
            collection_key = self._store.documents.collection(transaction, tenant, collection)
            removed, cancelled = None, False
            if collection_key is not None:
                removed = self._store.documents.delete(transaction, collection_key, document_id)
                cancelled = self._store.jobs.cancel(transaction, collection_key, document_id)
            if removed is None and not cancelled:
                raise UnknownDocument(f"there is no document {document_id!r} in {collection!r}", param="document_id")
        if collection_key is not None and removed:
            self._committer.remove_from_indexes(collection_key, removed)

    def _create_job(self, tenant: str, collection: str, batch: ParsedBatch, key: str | None, hashed: str) -> IngestJob:
        checked_name(collection, "collection")
        with self._store.database.write() as transaction:
            existing = self._store.jobs.find_by_key(transaction, tenant, key, hashed) if key else None
            if existing:
                return existing
            queued = self._store.jobs.queued(transaction)
            if queued >= self._settings.max_queued_documents:
                raise Overloaded(f"{queued:,} documents are already queued; try again later")
            self._store.jobs.purge(transaction, self._settings.job_retention_s)
            collection_key = self._store.documents.ensure_collection(transaction, tenant, collection)
            job = self._store.jobs.create(
                transaction, tenant, collection, collection_key, batch.documents, batch.errors
            )
            if key:
                self._store.jobs.remember_key(transaction, tenant, key, hashed, job.job_id)
        self._committer.counts.add(["failed"] * len(batch.errors))
        return job


class Ingestion(NamedTuple):
    """``intake`` queues uploads. ``ingester`` ingests them in its ``thread``. ``counts`` says what came in."""

    intake: UploadIntake
    ingester: Ingester
    thread: WorkThread
    counts: IngestCounts
