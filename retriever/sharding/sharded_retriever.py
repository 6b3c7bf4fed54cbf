"""Several shards as one retriever: `protocol.parts.Retriever` over any number of retrievers."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from protocol.documents import (
    CollectionInfo,
    DocumentPage,
    DocumentUpload,
    IngestJob,
    Orphan,
    RetrieverStats,
    StoredDocument,
)
from protocol.errors import NoGraph, Unavailable, UnknownCollection, UnknownDocument
from protocol.graph import GraphRequest, GraphView
from protocol.retrieval import CandidateSet, DocumentChunks, EmbeddingRequest, Embeddings, SearchKind, SearchRequest
from retriever.ingestion.upload_intake import body_hash
from retriever.reranking.base import Scores
from retriever.reranking.factory import build_reranking
from retriever.settings import NoRerankerSettings, RerankerSettings, ShardSettings
from retriever.sharding.assignment import by_shard, globally_numbered, shard_of, split_batch
from retriever.sharding.merging import merged_collections, merged_job, merged_page, merged_stats, shard_job_ids
from retriever.sharding.shard_group import Shard, ShardGroup
from retriever.sharding.sharded_searcher import ShardedSearcher, chunk_of

T = TypeVar("T")


class ShardedRetriever:
    """Stores each document in one shard, by a hash of tenant, collection and id, and searches all shards.

    Only a search and ``orphans`` can be partial. Any other call that needs a lost shard raises that shard's error.
    ``ShardGroup`` describes when a shard is lost.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        settings: ShardSettings,
        ready_within_s: float,
        reranker: RerankerSettings | None = None,
    ) -> None:
        self._shards = ShardGroup(shards, ready_within_s, partial=settings.on_lost == "partial")
        self._searcher = ShardedSearcher(shards, settings)
        self._reranking = build_reranking(reranker or NoRerankerSettings(), self._rerank)
        self._reranked = itertools.count()

    async def ready(self) -> None:
        """Return if every shard or, with partial answers, one can search. Raises a shard's error, or ShardTimeout."""
        await self._shards.ready()

    async def search(self, request: SearchRequest) -> AsyncGenerator[CandidateSet, None]:
        """Search all shards in stages. Raises as the contract says, and InvalidRequest, before the first stage.

        A shard is lost if it fails or does not finish within ``timeout_s``. Depending on ``on_lost``, all later sets
        name it in ``missing_shards``, or its error is raised, in any stage. Its error is always raised if no shard has
        finished, even if the other shards have no documents.
        """
        async with aclosing(self._reranking(request, self._searched)) as stages:
            async for candidates in stages:
                yield candidates

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Embed texts in the first shard that is not lost. Raises as the contract says, and a shard's error."""
        lost = self._shards.lost
        return await self._shards[next((n for n in self._shards.numbers if n not in lost), 0)].embed(request)

    async def put_document(
        self, tenant: str, collection: str, upload: DocumentUpload, idempotency_key: str | None = None
    ) -> IngestJob:
        """Accept a document. Raises as the contract says.

        An idempotency key stays bound to the first body it came with, even if that upload is refused.
        """
        shard = self._shard_of(tenant, collection, upload.document_id)
        key = await self._claim(tenant, idempotency_key, collection, upload)
        return merged_job({shard: await self._shards[shard].put_document(tenant, collection, upload, key)})

    async def put_batch(
        self, tenant: str, collection: str, jsonl: bytes, idempotency_key: str | None = None
    ) -> IngestJob:
        """Split a batch and send each shard its part. Raises as the contract says.

        If a shard is lost or full, other shards may have accepted their parts already. Sending the batch again repairs
        this: with the same idempotency key they return their existing jobs, without a key they report unchanged
        documents.
        """
        parts = await asyncio.to_thread(split_batch, jsonl, partial(self._shard_of, tenant, collection))
        key = await self._claim(tenant, idempotency_key, collection, jsonl)
        jobs = await self._shards.call(parts, lambda part, shard: shard.put_batch(tenant, collection, parts[part], key))
        return merged_job(jobs)

    async def delete_document(self, tenant: str, collection: str, document_id: str) -> None:
        """Delete a document, its chunks and its queued uploads in one transaction.

        Contents that documents of another shard share become orphans too. Dropping their KV only costs one
        recomputation.
        """
        await self._in_collection(tenant, collection, document_id, lambda shard: shard.delete_document)

    async def get_document(self, tenant: str, collection: str, document_id: str) -> StoredDocument:
        """Return a document with its text. Raises UnknownCollection or UnknownDocument."""
        return await self._in_collection(tenant, collection, document_id, lambda shard: shard.get_document)

    async def chunks(self, tenant: str, collection: str, document_id: str) -> DocumentChunks:
        """Return a document's chunks in order. Raises UnknownCollection or UnknownDocument."""
        found = await self._in_collection(tenant, collection, document_id, lambda shard: shard.chunks)
        shard = self._shard_of(tenant, collection, document_id)
        return replace(found, chunks=tuple(chunk_of(shard, chunk) for chunk in found.chunks))

    async def put_collection(self, tenant: str, collection: str, search: SearchKind | None) -> None:
        """Create a collection in every shard, or change how it is searched. Repeating a failed call repairs it."""
        await self._everywhere(lambda shard: shard.put_collection(tenant, collection, search))

    async def list_documents(self, tenant: str, collection: str, limit: int, after: str | None = None) -> DocumentPage:
        """Return a page of documents with ids above ``after``. Raises UnknownCollection or InvalidRequest."""

        async def page(shard: Shard) -> DocumentPage | None:
            try:
                return await shard.list_documents(tenant, collection, limit, after)
            except UnknownCollection:
                return None

        pages = [page for page in await self._everywhere(page) if page is not None]
        if not pages:
            raise UnknownCollection(f"there is no collection {collection!r}", param="collection")
        return merged_page(pages, limit)

    async def list_collections(self, tenant: str) -> Sequence[CollectionInfo]:
        """Return the tenant's collections, sorted by name."""
        return merged_collections(await self._everywhere(lambda shard: shard.list_collections(tenant)))

    async def view_graph(self, request: GraphRequest) -> GraphView:
        """Raise UnknownCollection or NoGraph: a graph needs all documents in one retriever."""
        if all(info.name != request.collection for info in await self.list_collections(request.tenant)):
            raise UnknownCollection(f"there is no collection {request.collection!r}", param="collection")
        raise NoGraph("documents in several shards have no graph", param="collection")

    async def get_job(self, tenant: str, job_id: str) -> IngestJob:
        """Return the current state of a job. Raises UnknownJob, also if any shard has purged its part."""
        named = shard_job_ids(job_id, len(self._shards))
        return merged_job(await self._shards.call(named, lambda part, shard: shard.get_job(tenant, named[part])))

    async def orphans_of(self, tenant: str, collection: str, document_id: str) -> Sequence[Orphan]:
        """Return the orphans that a document left when it was deleted or replaced."""
        shard = self._shard_of(tenant, collection, document_id)
        found = await self._shards[shard].orphans_of(tenant, collection, document_id)
        return globally_numbered(found, shard, len(self._shards))

    async def orphans(self, older_than_s: float, limit: int) -> Sequence[Orphan]:
        """Return the oldest orphans, at least ``older_than_s`` seconds old, of all shards that answer.

        Documents of another shard may still contain them. A lost shard keeps its orphans until it is back, and does not
        delay the others. Raises an error only if all shards are lost.
        """
        count, lost = len(self._shards), self._shards.lost

        async def listed(number: int, shard: Shard) -> list[Orphan]:
            try:
                return globally_numbered(
                    await self._shards.in_time(number, shard.orphans(older_than_s, limit)), number, count
                )
            except Unavailable as error:
                lost[number] = error
                return []

        found = await self._shards.call([number for number in self._shards.numbers if number not in lost], listed)
        if len(lost) == count:
            raise next(iter(lost.values()))
        return sorted(itertools.chain.from_iterable(found.values()), key=lambda orphan: orphan.number)[:limit]

    async def attempt_orphans(self, orphans: Sequence[Orphan]) -> None:
        """Count an attempt to delete the KV of each, in their shards. Raises StorageFull."""
        parts = by_shard(orphans, len(self._shards))
        await self._shards.call(parts, lambda part, shard: shard.attempt_orphans(parts[part]))

    async def give_up_orphans(self, orphans: Sequence[Orphan], reason: str) -> None:
        """Give up deleting the KV of orphans, in their shards. Raises StorageFull."""
        parts = by_shard(orphans, len(self._shards))
        await self._shards.call(parts, lambda part, shard: shard.give_up_orphans(parts[part], reason))

    async def forget_orphans(self, orphans: Sequence[Orphan]) -> None:
        """Remove orphans from the lists of their shards. Raises StorageFull."""
        parts = by_shard(orphans, len(self._shards))
        await self._shards.call(parts, lambda part, shard: shard.forget_orphans(parts[part]))

    async def stats(self) -> RetrieverStats:
        """Return the sums over all shards. Raises a lost shard's error, because a sum without it would jump."""
        return merged_stats(await self._everywhere(lambda shard: shard.stats()))

    async def _rerank(self, query: str, texts: Sequence[str], wanted: int) -> Scores:
        """Ask the rerankers of the shards, which are all alike, in turn. Raises the error of a lost one if all are."""
        lost = self._shards.lost
        there = [number for number in self._shards.numbers if number not in lost] or [0]
        return await self._shards[there[next(self._reranked) % len(there)]].rerank(query, texts, wanted)

    def _searched(self, request: SearchRequest) -> AsyncGenerator[CandidateSet, None]:
        return self._searcher.stages(request, self._shards.lost)

    async def _everywhere(self, call: Callable[[Shard], Awaitable[T]]) -> list[T]:
        return list((await self._shards.call(self._shards.numbers, lambda _, shard: call(shard))).values())

    def _shard_of(self, *names: str) -> int:
        return shard_of(len(self._shards), *names)

    async def _in_collection(
        self,
        tenant: str,
        collection: str,
        document_id: str,
        call_of: Callable[[Shard], Callable[[str, str, str], Awaitable[T]]],
    ) -> T:
        """Make a call of a document's shard. Raises UnknownDocument if only other shards know the collection."""
        try:
            shard = self._shards[self._shard_of(tenant, collection, document_id)]
            return await call_of(shard)(tenant, collection, document_id)
        except UnknownCollection:
            if all(info.name != collection for info in await self.list_collections(tenant)):
                raise
            raise UnknownDocument(f"there is no document {document_id!r} in {collection!r}", "document_id") from None

    async def _claim(self, tenant: str, key: str | None, collection: str, body: DocumentUpload | bytes) -> str | None:
        """Claim an idempotency key for a body and return the key for the shards. Raises IdempotencyMismatch.

        Two bodies with one key may go to different shards, which would not notice. So one shard, chosen by the key,
        checks the body, and the key for the shards includes the body's hash.
        """
        if key is None:
            return None
        hashed = await asyncio.to_thread(body_hash, collection, body)
        await self._shards[self._shard_of(tenant, key)].claim_key(tenant, key, hashed)
        return f"{key} {hashed}"
