"""Replies with documents, collections and ingestion jobs."""

from typing import Literal

import msgspec

from gateway.stores.uploads import SeenJob
from protocol.documents import CollectionInfo, DocumentInfo, JobError, JobStatus, StoredDocument


class JobReply(msgspec.Struct, frozen=True, kw_only=True):
    """An ingestion job, with the counters of ``IngestJob`` and its newest error.

    A ``stale`` job is the last recorded state, because the retriever is unavailable now.
    """

    job_id: str
    object: Literal["ingest.job"] = "ingest.job"
    collection: str
    status: JobStatus
    total: int
    stored: int
    unchanged: int
    failed_documents: int
    created_at: float
    updated_at: float
    errors: tuple[JobError, ...]
    last_error: JobError | None
    stale: bool

    @classmethod
    def of(cls, seen: SeenJob) -> "JobReply":
        """Make the reply from a job."""
        return cls(**msgspec.structs.asdict(seen.job), last_error=seen.job.last_error, stale=seen.stale)


class DocumentReply(DocumentInfo, frozen=True, kw_only=True):
    """A stored document with its text."""

    object: Literal["document"] = "document"
    text: str

    @classmethod
    def of(cls, stored: StoredDocument) -> "DocumentReply":
        """Make the reply from a stored document."""
        return cls(**msgspec.structs.asdict(stored.info), text=stored.text)


class DocumentList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of documents, ordered by id. Send ``next_cursor`` as ``after`` to get the next page."""

    object: Literal["list"] = "list"
    data: tuple[DocumentInfo, ...]
    has_more: bool
    next_cursor: str | None


class CollectionList(msgspec.Struct, frozen=True, kw_only=True):
    """All collections of a tenant, ordered by name."""

    object: Literal["list"] = "list"
    data: tuple[CollectionInfo, ...]


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """Confirmation of a deleted document."""

    object: Literal["document.deleted"] = "document.deleted"
    document_id: str
    deleted: Literal[True] = True
