"""Documents: uploads, stored documents, and the jobs that ingest them."""

from typing import Literal

import msgspec

from protocol.filters import Attributes
from protocol.graph import GraphState, Triplet
from protocol.retrieval import SearchKind, StoreRevision


class DocumentUpload(msgspec.Struct, frozen=True):
    """A document as uploaded: raw bytes, the media type that says how to read them, and metadata.

    If ``media_type`` is empty or ``application/octet-stream``, the suffix of ``filename``, or else of the id, says it.
    ``title`` stands above the text in prompts. If it is None, the loader takes the document's own title. ``triplets``
    are what the document states; its chunks state them in the collection's graph.
    """

    document_id: str
    content: bytes
    media_type: str
    filename: str | None = None
    title: str | None = None
    attributes: Attributes = {}
    # Not set for none, so that idempotency keys of earlier versions know such an upload by its hash.
    triplets: tuple[Triplet, ...] | msgspec.UnsetType = msgspec.UNSET


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
    """One page of a listing, ordered by document id. ``next_cursor`` is None on the last page."""

    documents: tuple[DocumentInfo, ...]
    next_cursor: str | None


class Orphan(msgspec.Struct, frozen=True):
    """Content of a chunk that no document of its tenant has any more. Its KV still has to be deleted.

    ``number`` is never reused: content that returns and goes again is a new orphan. The content went with the revision
    ``gone_at`` of its store. There were ``attempts`` to delete the KV outside of a request.
    """

    number: int
    tenant: str
    content_hash: str
    gone_at: StoreRevision
    attempts: int = 0


class CollectionInfo(msgspec.Struct, frozen=True):
    """A tenant's collection, how much it holds, and how it is searched; None: as the configuration says.

    ``graph`` says whether searches can use its graph.
    """

    name: str
    documents: int
    chunks: int
    search: SearchKind | None = None
    graph: GraphState = GraphState.NONE


class RetrieverStats(msgspec.Struct, frozen=True):
    """Documents by outcome since the start (stored, unchanged, failed), queued documents, and disk space.

    ``disk_free_bytes`` of ``disk_bytes`` are free on the store's file system; with several, on the fullest.
    ``unread_chunks`` are not in the graph of their collection yet. ``unreadable_chunks`` could not be read for it. Both
    are None without graphs.
    """

    ingested: dict[str, int]
    queued: int
    disk_bytes: int
    disk_free_bytes: int
    unread_chunks: int | None = None
    unreadable_chunks: int | None = None


MOST_TRIPLETS = 10_000
"""Triplets of an upload."""

DEFAULT_COLLECTION = "default"
"""The collection of requests that name none. It exists for every tenant from the start."""

JobStatus = Literal["queued", "in_progress", "completed", "failed"]
UNFINISHED: frozenset[JobStatus] = frozenset({"queued", "in_progress"})
"""The job statuses that will still change."""


class JobError(msgspec.Struct, frozen=True):
    """Why a job skipped one document. ``line`` counts a batch's lines from 1."""

    code: str
    message: str
    document_id: str | None = None
    line: int | None = None


class IngestJob(msgspec.Struct, frozen=True):
    """State of one ingestion. A batch completes when every line was tried; its failures are in ``errors``.

    The status is ``failed`` if no document was ingested. Counts are documents: of ``total``, ``stored`` are new or
    changed, ``unchanged`` were already stored, and ``failed_documents`` were skipped.
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
        """The newest of ``errors``, or None."""
        return self.errors[-1] if self.errors else None

    @property
    def ended(self) -> bool:
        """Whether the job is finished."""
        return self.status not in UNFINISHED
