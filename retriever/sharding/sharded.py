"""Several shards as one retriever: `protocol.parts.Retriever` over any number of it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from itertools import chain
from typing import TypeVar

import structlog

from protocol.documents import (
    CollectionInfo,
    DocumentPage,
    DocumentUpload,
    IngestJob,
    Orphan,
    RetrieverStats,
    StoredDocument,
)
from protocol.errors import DeployFailed, RagtreeError, ShardTimeout, Unavailable, UnknownCollection, UnknownDocument
from protocol.retrieval import CandidateSet, Chunk, SearchRequest
from retriever.ingestion.accepting import body_hash
from retriever.settings import ShardSettings
from retriever.sharding.batches import split_batch
from retriever.sharding.jobs import jobs_named, merged_job
from retriever.sharding.listings import merged_collections, merged_page, merged_stats
from retriever.sharding.merging import chunk_of
from retriever.sharding.orphans import by_shard, numbered
from retriever.sharding.placement import place_of
from retriever.sharding.searching import ShardedSearcher
from retriever.sharding.shard import Shard

_log = structlog.get_logger(__name__)

T = TypeVar("T")


class ShardedRetriever:
    """Keeps each document in one of the shards, by a hash of tenant, collection and id, and searches all of them.

    Only a search and ``orphans`` may be partial: any other call that needs a shard which is lost raises that shard's
    error. A shard that ``ready`` found missing counts as lost until ``ready`` is called again, so nobody waits for it
    meanwhile; it is missing if it says so, or says nothing for ``ready_within_s`` seconds. ``ready`` must be given at
    least that long, or a silent shard is never found missing.
    """

    def __init__(self, shards: Sequence[Shard], settings: ShardSettings, ready_within_s: float) -> None:
        self._shards = shards
        self._every = range(len(shards))
        self._partial = settings.on_lost == "partial"
        self._ready_within_s = ready_within_s
        self._searcher = ShardedSearcher(shards, settings)
        self._absent: dict[int, RagtreeError] = {}

    async def ready(self) -> None:
        """Return when searches can be served: by every shard or, where answers may be partial, by one.

        Raises what a shard says that is not ready, and ShardTimeout.
        """
        found = await asyncio.gather(*map(self._missing, self._every))
        absent = {shard: error for shard, error in enumerate(found) if error is not None}
        if absent.keys() != self._absent.keys():
            _log.info("shard_readiness", missing={shard: error.message for shard, error in absent.items()})
        self._absent = absent
        if absent and (not self._partial or len(absent) == len(self._shards)):
            # A shard that will never be there is the news where all are needed, and none where the others may yet come.
            raise max(absent.values(), key=lambda error: isinstance(error, DeployFailed) != self._partial)

    async def search(self, request: SearchRequest) -> AsyncGenerator[CandidateSet, None]:
        """Search all shards in stages; see the contract for what it raises, and InvalidRequest, before the first.

        A shard is lost that cannot answer, or has not answered within ``timeout_s``. Then either the sets from there on
        name it in ``missing_shards``, or its error is raised, in any stage. It is raised in any case when no shard has
        answered, also where the others have no documents.
        """
        async with aclosing(self._searcher.stages(request, dict(self._absent))) as stages:
            async for candidates in stages:
                yield candidates

    async def put_document(
        self, tenant: str, collection: str, upload: DocumentUpload, idempotency_key: str | None = None
    ) -> IngestJob:
        """Accept a document; see the contract for what it raises.

        An idempotency key stays with the body that it first came with, even if that is refused.
        """
        shard = self._place(tenant, collection, upload.document_id)
        key = await self._claimed(tenant, idempotency_key, collection, upload)
        return merged_job({shard: await self._shard(shard).put_document(tenant, collection, upload, key)})

    async def put_batch(
        self, tenant: str, collection: str, jsonl: bytes, idempotency_key: str | None = None
    ) -> IngestJob:
        """Accept a batch, each shard its part; see the contract for what it raises.

        Where a shard is lost or full in the middle of it, others may have their parts already. Sending the batch again
        heals that: under the same idempotency key they give their jobs again, without one they find nothing changed.
        """
        parts = await asyncio.to_thread(split_batch, jsonl, partial(self._place, tenant, collection))
        key = await self._claimed(tenant, idempotency_key, collection, jsonl)
        jobs = await self._ask(parts, lambda part, shard: shard.put_batch(tenant, collection, parts[part], key))
        return merged_job(jobs)

    async def delete_document(self, tenant: str, collection: str, document_id: str) -> None:
        """Remove a document, its chunks and its uploads that are still queued, in one step.

        What of it another shard's documents still have is an orphan all the same: dropping its KV costs computing it
        once more.
        """
        await self._in_collection(
            tenant, collection, document_id, lambda shard: shard.delete_document(tenant, collection, document_id)
        )

    async def get_document(self, tenant: str, collection: str, document_id: str) -> StoredDocument:
        """Read a document back. Raises UnknownCollection or UnknownDocument."""
        return await self._in_collection(
            tenant, collection, document_id, lambda shard: shard.get_document(tenant, collection, document_id)
        )

    async def chunks(self, tenant: str, collection: str, document_id: str) -> Sequence[Chunk]:
        """The chunks of a document in their order. Raises UnknownCollection or UnknownDocument."""
        found = await self._in_collection(
            tenant, collection, document_id, lambda shard: shard.chunks(tenant, collection, document_id)
        )
        return [chunk_of(self._place(tenant, collection, document_id), chunk) for chunk in found]

    async def list_documents(self, tenant: str, collection: str, limit: int, after: str | None = None) -> DocumentPage:
        """List a page of documents behind the id ``after``. Raises UnknownCollection or InvalidRequest."""

        async def page(_: int, shard: Shard) -> DocumentPage | None:
            try:
                return await shard.list_documents(tenant, collection, limit, after)
            except UnknownCollection:
                return None

        answers = await self._ask(self._every, page)
        pages = [page for page in answers.values() if page is not None]
        if not pages:
            raise UnknownCollection(f"there is no collection {collection!r}", param="collection")
        return merged_page(pages, limit)

    async def list_collections(self, tenant: str) -> Sequence[CollectionInfo]:
        """List the tenant's collections by name."""
        return merged_collections(
            (await self._ask(self._every, lambda _, shard: shard.list_collections(tenant))).values()
        )

    async def get_job(self, tenant: str, job_id: str) -> IngestJob:
        """The job's state now. Raises UnknownJob, also when one of its shards has forgotten its part."""
        named = jobs_named(job_id, len(self._shards))
        return merged_job(await self._ask(named, lambda part, shard: shard.get_job(tenant, named[part])))

    async def orphans_of(self, tenant: str, collection: str, document_id: str) -> Sequence[Orphan]:
        """The orphans that went with a document, or with what it was replaced by."""
        shard = self._place(tenant, collection, document_id)
        found = await self._shard(shard).orphans_of(tenant, collection, document_id)
        return numbered(found, shard, len(self._shards))

    async def orphans(self, older_than_s: float, limit: int) -> Sequence[Orphan]:
        """Of those that are orphans for so many seconds, the oldest of each shard that is there.

        Another shard's documents may still have them, or have them again. What a lost shard has noted stays noted, and
        is found when the shard is back; it does not hold up those of the others. Raises why there is none where all
        shards are lost.
        """
        count, lost = len(self._shards), dict(self._absent)

        async def noted(number: int, shard: Shard) -> list[Orphan]:
            try:
                return numbered(await self._in_time(number, shard.orphans(older_than_s, limit)), number, count)
            except Unavailable as error:
                lost[number] = error
                return []

        found = await self._ask([shard for shard in self._every if shard not in lost], noted)
        if len(lost) == count:
            raise next(iter(lost.values()))
        return sorted(chain.from_iterable(found.values()), key=lambda orphan: orphan.number)[:limit]

    async def forget_orphans(self, orphans: Sequence[Orphan]) -> None:
        """Take orphans off the lists of the shards that they came from. Raises StorageFull."""
        parts = by_shard(orphans, len(self._shards))
        await self._ask(parts, lambda part, shard: shard.forget_orphans(parts[part]))

    async def stats(self) -> RetrieverStats:
        """The counts of all shards together. Raises what a lost one raises: a sum without it would jump."""
        return merged_stats((await self._ask(self._every, lambda _, shard: shard.stats())).values())

    def _place(self, *names: str) -> int:
        return place_of(len(self._shards), *names)

    def _shard(self, shard: int) -> Shard:
        if shard in self._absent:
            raise self._absent[shard]
        return self._shards[shard]

    async def _ask(self, shards: Iterable[int], call: Callable[[int, Shard], Awaitable[T]]) -> dict[int, T]:
        """What some shards say, each asked at once; where one of them is lost, none is asked.

        When all have ended, raises what the first of them raised.
        """
        asked = {number: self._shard(number) for number in shards}
        calls = (call(number, shard) for number, shard in asked.items())
        answers: dict[int, T] = {}
        for number, answer in zip(asked, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(answer, BaseException):
                raise answer
            answers[number] = answer
        return answers

    async def _in_collection(
        self, tenant: str, collection: str, document_id: str, call: Callable[[Shard], Awaitable[T]]
    ) -> T:
        """What a document's shard says; it may not know of a collection that other shards have documents of."""
        try:
            return await call(self._shard(self._place(tenant, collection, document_id)))
        except UnknownCollection:
            if all(info.name != collection for info in await self.list_collections(tenant)):
                raise
            raise UnknownDocument(f"there is no document {document_id!r} in {collection!r}", "document_id") from None

    async def _claimed(self, tenant: str, key: str | None, collection: str, body: DocumentUpload | bytes) -> str | None:
        """The key for the shards of an upload. Raises IdempotencyMismatch where it came with another body before.

        Two bodies under one key may go to different shards, of which none would notice. So one shard says whose the key
        is, and the others know it by its body, too.
        """
        if key is None:
            return None
        hashed = await asyncio.to_thread(body_hash, collection, body)
        await self._shard(self._place(tenant, key)).claim_key(tenant, key, hashed)
        return f"{key} {hashed}"

    async def _missing(self, shard: int) -> RagtreeError | None:
        try:
            await self._in_time(shard, self._shards[shard].ready())
        except RagtreeError as error:
            return error
        return None

    async def _in_time(self, shard: int, answer: Awaitable[T]) -> T:
        """A shard's answer. Raises ShardTimeout where it says nothing for as long as makes it missing."""
        try:
            async with asyncio.timeout(self._ready_within_s):
                return await answer
        except TimeoutError:
            raise ShardTimeout(f"shard {shard} does not answer") from None
