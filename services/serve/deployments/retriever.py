"""The retriever, or a shard of it, as a Ray Serve deployment: one replica, which owns its data folder."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from protocol.documents import (
    CollectionInfo,
    DocumentPage,
    DocumentUpload,
    IngestJob,
    Orphan,
    RetrieverStats,
    StoredDocument,
)
from protocol.retrieval import CandidateSet, Chunk, SearchRequest
from retriever.build import build_retriever
from services.config import Config
from services.shards import shard_folders
from services.spans import open_spans


class RetrieverDeployment:
    """Holds a ``Retriever`` and its ingest worker."""

    async def __init__(self, config: Config, shard: int) -> None:  # type: ignore[misc]  # Serve awaits it
        config.observability.configure_logging()
        self._spans = open_spans(config.observability, "retriever")
        folder = shard_folders(config).of(shard)
        self._retriever = build_retriever(config.retriever, folder, tracer=self._spans.tracer)
        await self._retriever.start()

    async def search(self, request: SearchRequest) -> AsyncGenerator[CandidateSet, None]:
        """Search in stages."""
        async with aclosing(self._retriever.search(request)) as stages:
            async for candidates in stages:
                yield candidates

    async def put_document(
        self, tenant: str, collection: str, upload: DocumentUpload, idempotency_key: str | None = None
    ) -> IngestJob:
        """Take a document in."""
        return await self._retriever.put_document(tenant, collection, upload, idempotency_key)

    async def put_batch(
        self, tenant: str, collection: str, jsonl: bytes, idempotency_key: str | None = None
    ) -> IngestJob:
        """Take a batch in."""
        return await self._retriever.put_batch(tenant, collection, jsonl, idempotency_key)

    async def claim_key(self, tenant: str, key: str, body_hash: str) -> None:
        """Bind an idempotency key."""
        await self._retriever.claim_key(tenant, key, body_hash)

    async def delete_document(self, tenant: str, collection: str, document_id: str) -> None:
        """Remove a document."""
        await self._retriever.delete_document(tenant, collection, document_id)

    async def get_document(self, tenant: str, collection: str, document_id: str) -> StoredDocument:
        """Read a document back."""
        return await self._retriever.get_document(tenant, collection, document_id)

    async def chunks(self, tenant: str, collection: str, document_id: str) -> Sequence[Chunk]:
        """The chunks of a document."""
        return await self._retriever.chunks(tenant, collection, document_id)

    async def list_documents(self, tenant: str, collection: str, limit: int, after: str | None = None) -> DocumentPage:
        """List a page of documents."""
        return await self._retriever.list_documents(tenant, collection, limit, after)

    async def list_collections(self, tenant: str) -> Sequence[CollectionInfo]:
        """List the tenant's collections."""
        return await self._retriever.list_collections(tenant)

    async def get_job(self, tenant: str, job_id: str) -> IngestJob:
        """The job's state now."""
        return await self._retriever.get_job(tenant, job_id)

    async def orphans_of(self, tenant: str, collection: str, document_id: str) -> Sequence[Orphan]:
        """The orphans of a document."""
        return await self._retriever.orphans_of(tenant, collection, document_id)

    async def orphans(self, older_than_s: float, limit: int) -> Sequence[Orphan]:
        """The oldest orphans."""
        return await self._retriever.orphans(older_than_s, limit)

    async def forget_orphans(self, orphans: Sequence[Orphan]) -> None:
        """Hear that nothing made of them is left."""
        await self._retriever.forget_orphans(orphans)

    async def stats(self) -> RetrieverStats:
        """Counters and gauges."""
        return await self._retriever.stats()

    async def ready(self) -> None:
        """Return when searches can be served."""
        await self._retriever.ready()

    async def __del__(self) -> None:
        """Serve's call before it ends the replica."""
        await self._retriever.close()
        await asyncio.to_thread(self._spans.close)
