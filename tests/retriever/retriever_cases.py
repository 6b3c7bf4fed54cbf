"""Helpers for tests of the retriever: run one, upload and wait, search, and look into its store and index."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
from reportlab.pdfgen.canvas import Canvas
from varied import varied

from protocol.documents import DocumentUpload, IngestJob
from protocol.retrieval import CandidateSet, SearchKind, SearchRequest
from retriever.build import build_retriever
from retriever.embedding.hashing import HashingEmbedder
from retriever.index.builder import AnyIndex
from retriever.retriever import Retriever
from retriever.settings import HashingSettings, IndexSettings, RetrieverSettings

TENANT = "acme"


def settings(**changes: Any) -> RetrieverSettings:
    # Dense unless a test is about words: the hashing embedder makes scores that can be told beforehand.
    usual = {"embedder": HashingSettings(), "search": SearchKind.DENSE, "retry_first_s": 0.01, "retry_max_s": 0.05}
    return varied(RetrieverSettings, **{**usual, **changes})


@asynccontextmanager
async def running(folder: Path, embedder: HashingEmbedder | None = None, **changes: Any) -> AsyncIterator[Retriever]:
    retriever = build_retriever(settings(**changes), folder, embedder)
    await retriever.start()
    try:
        yield retriever
    finally:
        await retriever.close()


def upload(document_id: str, text: str, **fields: Any) -> DocumentUpload:
    return DocumentUpload(document_id, text.encode(), fields.pop("media_type", "text/plain"), **fields)


def pdf(*pages: str, title: str | None = None) -> bytes:
    file = BytesIO()
    canvas = Canvas(file)
    canvas.setTitle(title or "")
    for page in pages:
        canvas.drawString(72, 700, page)
        canvas.showPage()
    canvas.save()
    return file.getvalue()


def lines(documents: Sequence[dict[str, Any]]) -> bytes:
    return b"\n".join(msgspec.json.encode(document) for document in documents)


async def ended(retriever: Retriever, job: IngestJob) -> IngestJob:
    async with asyncio.timeout(60):
        while not job.ended:
            await asyncio.sleep(0.002)
            job = await retriever.get_job(TENANT, job.job_id)
    return job


async def put(
    retriever: Retriever, document_id: str, text: str, collection: str = "default", **fields: Any
) -> IngestJob:
    return await ended(retriever, await retriever.put_document(TENANT, collection, upload(document_id, text, **fields)))


async def put_lines(
    retriever: Retriever, documents: Sequence[dict[str, Any]], collection: str = "default"
) -> IngestJob:
    return await ended(retriever, await retriever.put_batch(TENANT, collection, lines(documents)))


async def search(retriever: Retriever, query: str, top_k: int = 5, **fields: Any) -> CandidateSet:
    request = SearchRequest(TENANT, fields.pop("collection", "default"), query, top_k, **fields)
    sets = [candidates async for candidates in retriever.search(request)]
    assert [candidates.final for candidates in sets] == [False] * (len(sets) - 1) + [True]
    return sets[-1]


def ids(candidates: CandidateSet) -> list[str]:
    return [chunk.document_id for chunk in candidates.docs]


SMALL = {"index": varied(IndexSettings, ivf_threshold=32, probe_share=1.0), "chunks": {"size": 16, "overlap": 0}}
"""With these settings a few documents need a trained index, and a short document has several chunks."""


def tales(first: int, last: int) -> list[dict[str, Any]]:
    return [{"id": f"d{number}", "text": f"tale {number} of words"} for number in range(first, last)]


def index_of(retriever: Retriever) -> AnyIndex:
    """The index of the only collection."""
    (entry,) = retriever._ingestion.ingester._catalog._entries.values()
    return entry.vectors


def live_ids(retriever: Retriever) -> list[int]:
    """The ids of all chunks in the store."""
    with retriever._store.database.read() as transaction:
        return [row[0] for row in transaction.execute("SELECT id FROM chunks ORDER BY id")]
