"""Prefill of ingested documents in idle time, so that prompts have their KV before anybody has asked for them."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal, NamedTuple, TypeAlias
from uuid import uuid4

import structlog

from gateway.background.idle_prefill import IdlePrefill
from gateway.background.idle_time import IdleTime
from gateway.limits.auth import namespace_of
from gateway.metrics.gateway_metrics import GatewayMetrics
from protocol.documents import IngestJob
from protocol.errors import RagtreeError, Unavailable
from protocol.parts import Parts
from protocol.plans import AdmissionRequest, Reuse
from protocol.prompts import ChatMessage, Prompt
from protocol.repeating import in_background
from protocol.retrieval import Chunk

Outcome: TypeAlias = Literal["computed", "present", "no_room"]

_PAGE = 100
_POLL_S = 0.5
"""Between two looks at a job, or at a retriever that is away."""

log = structlog.get_logger(__name__)


class Ingested(NamedTuple):
    """A job that ingests one document, or any number of them if ``document_id`` is None."""

    tenant: str
    job: IngestJob
    document_id: str | None


class IngestedPrefill:
    """Prefills the chunks of ingested documents while no query runs, one after another, as far as the tiers have room.

    Each chunk but a document's first is computed behind that one: KV that has seen other text answers better in a
    composed prompt than KV that has seen none (docs/composition.md). Jobs are forgotten when the gateway stops.
    Switched off, it does nothing.
    """

    def __init__(
        self, parts: Parts, idle: IdleTime, prefill: IdlePrefill, metrics: GatewayMetrics, *, enabled: bool
    ) -> None:
        self._parts = parts
        self._idle = idle
        self._prefill = prefill
        self._metrics = metrics
        self._enabled = enabled
        self._waiting: asyncio.Queue[Ingested] = asyncio.Queue()

    def note(self, tenant: str, job: IngestJob, document_id: str | None = None) -> None:
        """Prefill a job's documents once it has ended."""
        if self._enabled:
            self._waiting.put_nowait(Ingested(tenant, job, document_id))

    @asynccontextmanager
    async def prefilling(self) -> AsyncIterator[None]:
        """Prefill in the background while the context is open."""
        async with in_background(self._run()):
            yield

    async def _run(self) -> None:
        while True:
            ingested = await self._waiting.get()
            try:
                await self._prefill_all(ingested)
            except RagtreeError as error:
                log.warning("ingested_documents_not_prefilled", job_id=ingested.job.job_id, error=str(error))

    async def _prefill_all(self, ingested: Ingested) -> None:
        tenant, job, _ = ingested
        if (await self._ended(tenant, job)).status == "failed":
            return
        async for document_id in self._documents(ingested):
            try:
                await self._prefill_document(tenant, job.collection, document_id)
            except RagtreeError as error:
                # It may have been deleted since.
                log.warning("document_not_prefilled", document_id=document_id, error=str(error))
                self._metrics.prefilled_ingested("failed")

    async def _ended(self, tenant: str, job: IngestJob) -> IngestJob:
        """The job once it has ended."""
        while not job.ended:
            await asyncio.sleep(_POLL_S)
            try:
                job = await self._parts.retriever.get_job(tenant, job.job_id)
            except Unavailable:
                continue
        return job

    async def _documents(self, ingested: Ingested) -> AsyncIterator[str]:
        """The job's one document, or all that were stored since it began, so at least its own."""
        tenant, job, only = ingested
        if only is not None:
            yield only
            return
        after: str | None = None
        while True:
            page = await self._parts.retriever.list_documents(tenant, job.collection, _PAGE, after)
            for document in page.documents:
                if document.updated_at >= job.created_at:
                    yield document.document_id
            after = page.next_cursor
            if after is None:
                return

    async def _prefill_document(self, tenant: str, collection: str, document_id: str) -> None:
        searched_at = time.time()
        chunks = await self._parts.retriever.chunks(tenant, collection, document_id)
        for chunk in chunks:
            behind = [chunk] if chunk is chunks[0] else [chunks[0], chunk]
            attempt = partial(self._attempt, tenant, behind, searched_at)
            self._metrics.prefilled_ingested(await self._idle.spend(attempt))

    async def _attempt(self, tenant: str, chunks: Sequence[Chunk], searched_at: float) -> Outcome | None:
        """What became of a prefill; None if the stack is busy."""
        laid_out = self._parts.layout.lay_out((ChatMessage("user", "?"),), chunks, max_tokens=1)
        prompt = Prompt(laid_out.prefix)
        if not await self._has_room(prompt.token_count):
            return "no_room"
        # Composed KV is not kept.
        request = AdmissionRequest(
            f"ingested_{uuid4().hex}", namespace_of(tenant), prompt, searched_at, reuse=Reuse.EXACT
        )
        computed = await self._prefill.attempt(request)
        if computed is None:
            return None
        return "computed" if computed else "present"

    async def _has_room(self, tokens: int) -> bool:
        """Whether the tiers have room, so that nothing has to leave for a document that nobody may ask for."""
        tiers = (await self._parts.controller.stats()).tiers
        return sum(tier.capacity_tokens - tier.used_tokens for tier in tiers) >= tokens
