"""Documents, collections and jobs as replies spell them."""

from typing import Literal

import msgspec

from gateway.stores.uploads import SeenJob
from protocol.documents import CollectionInfo, DocumentInfo, JobError, JobStatus, StoredDocument


class JobReply(msgspec.Struct, frozen=True, kw_only=True):
    """An ingestion job as ``IngestJob`` counts it, with its newest error apart.

    It is ``stale`` where the retriever cannot be asked now: then it is what was last seen of the job.
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
        """The job as a reply."""
        return cls(**msgspec.structs.asdict(seen.job), last_error=seen.job.last_error, stale=seen.stale)


class DocumentReply(DocumentInfo, frozen=True, kw_only=True):
    """A stored document with its text."""

    object: Literal["document"] = "document"
    text: str

    @classmethod
    def of(cls, stored: StoredDocument) -> "DocumentReply":
        """The document as a reply."""
        return cls(**msgspec.structs.asdict(stored.info), text=stored.text)


class DocumentList(msgspec.Struct, frozen=True, kw_only=True):
    """One page of documents in the order of their ids; ``next_cursor`` goes into ``after`` for the next."""

    object: Literal["list"] = "list"
    data: tuple[DocumentInfo, ...]
    has_more: bool
    next_cursor: str | None


class CollectionList(msgspec.Struct, frozen=True, kw_only=True):
    """All collections of a tenant, by name."""

    object: Literal["list"] = "list"
    data: tuple[CollectionInfo, ...]


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt for a deleted document."""

    object: Literal["document.deleted"] = "document.deleted"
    document_id: str
    deleted: Literal[True] = True
