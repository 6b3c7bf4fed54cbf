"""The acceptance of changes: uploads become durable jobs, deletions take effect at once."""

import msgspec
from blake3 import blake3

from protocol.documents import DocumentUpload, IngestJob
from protocol.errors import Overloaded, UnknownDocument
from retriever.ingestion.batch import ParsedBatch, incoming, parse_batch
from retriever.ingestion.ingest_counts import IngestCounts
from retriever.ingestion.ingester import Ingester
from retriever.loaders.registry import LoaderRegistry
from retriever.settings import IngestSettings
from retriever.store.database import Database
from retriever.store.documents import Documents
from retriever.store.incoming import checked_name
from retriever.store.jobs import Jobs


def body_hash(collection: str, body: DocumentUpload | bytes) -> str:
    """What must be equal for two uploads under one idempotency key to be the same."""
    return blake3(msgspec.msgpack.encode((collection, body))).hexdigest()


class Acceptor:
    """Writes down what is to be done with documents; when a call returns, it will be, whatever happens."""

    def __init__(
        self,
        database: Database,
        documents: Documents,
        jobs: Jobs,
        loaders: LoaderRegistry,
        ingester: Ingester,
        settings: IngestSettings,
        counts: IngestCounts,
    ) -> None:
        self._database = database
        self._documents = documents
        self._jobs = jobs
        self._loaders = loaders
        self._ingester = ingester
        self._settings = settings
        self._counts = counts

    def put_document(self, tenant: str, collection: str, upload: DocumentUpload, key: str | None) -> IngestJob:
        """A job that puts a document in.

        Raises as loaders do, InvalidRequest, StorageFull, IdempotencyMismatch, and Overloaded while too many wait.
        """
        loaded = self._loaders.load(upload.content, upload.media_type)
        title = upload.title or loaded.title
        document = incoming(upload.document_id, loaded.text, upload.filename, title, upload.attributes)
        return self._accept(tenant, collection, ParsedBatch([(None, document)], []), key, body_hash(collection, upload))

    def put_batch(self, tenant: str, collection: str, jsonl: bytes, key: str | None) -> IngestJob:
        """A job that puts a batch's documents in.

        Raises as ``parse_batch``, StorageFull, IdempotencyMismatch, and Overloaded while too many wait.
        """
        return self._accept(tenant, collection, parse_batch(jsonl), key, body_hash(collection, jsonl))

    def claim_key(self, tenant: str, key: str, hashed: str) -> None:
        """Bind an idempotency key to the hash of a body. Raises StorageFull or IdempotencyMismatch."""
        with self._database.write() as transaction:
            self._jobs.claim_key(transaction, tenant, key, hashed)

    def delete_document(self, tenant: str, collection: str, document_id: str) -> None:
        """Remove a document, from the queue also. Raises UnknownCollection or UnknownDocument."""
        with self._database.write() as transaction:
            held_in = self._documents.collection(transaction, tenant, collection)
            removed = None if held_in is None else self._documents.delete(transaction, held_in, document_id)
            withdrawn = held_in is not None and self._jobs.withdraw(transaction, held_in, document_id)
            if removed is None and not withdrawn:
                raise UnknownDocument(f"there is no document {document_id!r} in {collection!r}", param="document_id")
        if held_in is not None and removed:
            self._ingester.forget(held_in, removed)

    def _accept(self, tenant: str, collection: str, batch: ParsedBatch, key: str | None, hashed: str) -> IngestJob:
        checked_name(collection, "collection")
        with self._database.write() as transaction:
            before = self._jobs.accepted_before(transaction, tenant, key, hashed) if key else None
            if before:
                return before
            waiting = self._jobs.queued(transaction)
            if waiting >= self._settings.max_queued_documents:
                raise Overloaded(f"{waiting:,} documents wait to go in already; try again later")
            self._jobs.purge(transaction, self._settings.job_retention_s)
            into = self._documents.ensure_collection(transaction, tenant, collection)
            job = self._jobs.create(transaction, tenant, collection, into, batch.documents, batch.errors)
            if key:
                self._jobs.remember_key(transaction, tenant, key, hashed, job.job_id)
        self._counts.add(["failed"] * len(batch.errors))
        return job
