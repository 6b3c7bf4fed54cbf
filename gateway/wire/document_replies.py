"""Replies with documents, collections, their graphs, and ingestion jobs."""

from typing import Literal
from urllib.parse import quote

import msgspec

from gateway.stores.uploads import SeenJob
from protocol.documents import CollectionInfo, DocumentInfo, JobError, JobStatus
from protocol.filters import Attributes
from protocol.graph import GraphView
from protocol.retrieval import Chunk, Lines, Pages


def document_url(collection: str, document_id: str) -> str:
    """The path of a document."""
    return f"/v1/collections/{quote(collection, safe='')}/documents/{quote(document_id, safe='')}"


def chunk_url(collection: str, chunk: Chunk) -> str:
    """The path of a chunk. Another version of its document has other chunks."""
    return f"{document_url(collection, chunk.document_id)}/chunks/{quote(chunk.chunk_id, safe='')}"


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


class ChunkReply(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk of a document.

    ``index`` counts the document's chunks from 0. ``lines`` and ``pages`` are null where unknown.
    """

    object: Literal["chunk"] = "chunk"
    chunk_id: str
    document_id: str
    collection: str
    filename: str
    title: str | None
    index: int
    lines: Lines | None
    pages: Pages | None
    attributes: Attributes
    text: str
    url: str
    document_url: str

    @classmethod
    def of(cls, chunk: Chunk, collection: str) -> "ChunkReply":
        """Make the reply from a chunk of a document in ``collection``."""
        names = {
            "collection": collection,
            "url": chunk_url(collection, chunk),
            "document_url": document_url(collection, chunk.document_id),
        }
        return msgspec.convert(msgspec.structs.asdict(chunk) | names, cls)


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


class GraphReply(GraphView, frozen=True, kw_only=True):
    """A part of a collection's graph.

    ``entities`` are the nearest first, or else the most mentioned. ``mentions`` is how many statements mention one, and
    ``depth`` how many relations lead to it. ``relations`` are between these entities; chunk ``index`` of
    ``document_id`` states one. ``truncated`` says that a limit left something out. ``size`` is that of the whole graph,
    and ``unread_chunks`` is how many chunks of the collection it does not know yet. It has nothing of
    ``unreadable_chunks``, because what read them gave no usable answer.
    """

    object: Literal["graph"] = "graph"
    collection: str
