"""Documents on their way in, documents as stored, and the jobs that carry them from one to the other."""

from typing import Literal

import msgspec

from protocol.filters import Attributes


class DocumentUpload(msgspec.Struct, frozen=True):
    """A document as it arrives: raw bytes, the media type that says how to read them, and what to remember of it.

    ``title`` stands above the text in prompts where given; otherwise the loader takes the document's own.
    """

    document_id: str
    content: bytes
    media_type: str
    filename: str | None = None
    title: str | None = None
    attributes: Attributes = {}


class DocumentInfo(msgspec.Struct, frozen=True):
    """A stored document without its text. Times are seconds since the epoch, sizes bytes of UTF-8 text."""

    document_id: str
    collection: str
    filename: str
    title: str | None
    content_hash: str
    bytes: int
    chunks: int
    attributes: Attributes
    created_at: float
    updated_at: float


class StoredDocument(msgspec.Struct, frozen=True):
    """A stored document with its text."""

    info: DocumentInfo
    text: str


class DocumentPage(msgspec.Struct, frozen=True):
    """One page of a listing in the order of document ids; ``next_cursor`` is None on the last."""

    documents: tuple[DocumentInfo, ...]
    next_cursor: str | None


class Orphan(msgspec.Struct, frozen=True):
    """A chunk's content that no document of its tenant has any more; what was made of it is still to be dropped.

    ``number`` is never given twice: a content that comes back and goes again is another orphan.
    """

    number: int
    tenant: str
    content_hash: str


class CollectionInfo(msgspec.Struct, frozen=True):
    """A tenant's collection and how much it holds."""

    name: str
    documents: int
    chunks: int


class RetrieverStats(msgspec.Struct, frozen=True):
    """Documents by what became of them since the start (stored, unchanged, failed), those that wait, and the disk.

    ``disk_free_bytes`` of ``disk_bytes`` are left on the file system of the store; of several, on the fullest.
    """

    ingested: dict[str, int]
    queued: int
    disk_bytes: int
    disk_free_bytes: int


DEFAULT_COLLECTION = "default"
"""The collection of requests that name none; every tenant has it before putting anything into it."""

JobStatus = Literal["queued", "in_progress", "completed", "failed"]
UNFINISHED: frozenset[JobStatus] = frozenset({"queued", "in_progress"})
"""The statuses of a job that will still change."""


class JobError(msgspec.Struct, frozen=True):
    """Why one document of a job did not go in. ``line`` counts a batch's lines from 1."""

    code: str
    message: str
    document_id: str | None = None
    line: int | None = None


class IngestJob(msgspec.Struct, frozen=True):
    """The state of one ingestion. A batch completes when every line was tried; its failures stand in ``errors``.

    ``failed`` is the status of a job of which nothing went in. Counts are documents: ``total`` of them, of which
    ``stored`` are new or changed, ``unchanged`` were there already, ``failed_documents`` were skipped.
    """

    job_id: str
    collection: str
    status: JobStatus
    total: int
    stored: int
    unchanged: int
    failed_documents: int
    created_at: float
    updated_at: float
    errors: tuple[JobError, ...] = ()

    @property
    def last_error(self) -> JobError | None:
        """The newest of ``errors``."""
        return self.errors[-1] if self.errors else None

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to this job."""
        return self.status not in UNFINISHED
