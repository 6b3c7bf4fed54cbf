"""What the retriever's tests share: building one, and waiting for its jobs."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from protocol.documents import DocumentUpload, IngestJob
from protocol.retrieval import CandidateSet, SearchRequest
from retriever.build import build_retriever
from retriever.embedding.hashing import HashingEmbedder
from retriever.retriever import Retriever
from retriever.settings import HashingSettings, IngestSettings, RetrieverSettings

TENANT = "acme"
QUICK = IngestSettings(retry_first_s=0.01, retry_max_s=0.05)


def settings(**changes: Any) -> RetrieverSettings:
    return RetrieverSettings(**{"embedder": HashingSettings(), "ingest": QUICK, **changes})


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


SMALL = {"index": {"ivf_threshold": 32, "probe_share": 1.0}, "chunks": {"size": 16, "overlap": 0}}
"""Settings under which a few documents are a trained index, and a short one is several chunks."""
