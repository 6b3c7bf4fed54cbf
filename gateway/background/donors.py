"""The chunks of documents as donors, whose KV composed prompts take over: prefilled before anybody has asked for it."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import NamedTuple
from uuid import uuid4

import structlog

from gateway.background.idle import IdlePrefill, IdleTime, Prefilled
from gateway.limits.auth import namespace_of
from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.query.laid_out import laid_out
from protocol.documents import DocumentInfo, IngestJob
from protocol.errors import RagtreeError, Unavailable
from protocol.parts import Parts, Retriever
from protocol.plans import AdmissionRequest, Reuse
from protocol.prompts import ChatMessage, Prompt
from protocol.repeating import in_background
from protocol.retrieval import Chunk, StoreRevision

_PAGE = 100


class Donor(NamedTuple):
    """The last of ``chunks``, computed after the others. Their store had them at a ``revision``."""

    tenant: str
    chunks: tuple[Chunk, ...]
    revision: StoreRevision

    @property
    def contents(self) -> tuple[str, ...]:
        """Contents of the chunks, in order."""
        return tuple(chunk.content_hash for chunk in self.chunks)


class Donors:
    """Finds the donors of documents, and prefills them while no query runs, as far as the tiers have room.

    Each chunk but a document's first is computed after that one: KV that has seen other text answers better in a
    composed prompt than KV that has seen none (docs/composition.md).
    """

    def __init__(self, parts: Parts, idle: IdleTime, prefill: IdlePrefill) -> None:
        self._parts = parts
        self._idle = idle
        self._prefill = prefill

    async def documents(self, tenant: str, collection: str) -> AsyncIterator[DocumentInfo]:
        """Yield the documents of a collection, ordered by id. Raises UnknownCollection or Unavailable."""
        after: str | None = None
        while True:
            page = await self._parts.retriever.list_documents(tenant, collection, _PAGE, after)
            for document in page.documents:
                yield document
            after = page.next_cursor
            if after is None:
                return

    async def of_document(self, tenant: str, collection: str, document_id: str) -> Sequence[Donor]:
        """A document's donors, in order. Raises UnknownCollection, UnknownDocument or Unavailable."""
        document = await self._idle.spend(partial(self._parts.retriever.chunks, tenant, collection, document_id))
        first = document.chunks[:1]
        return [
            Donor(tenant, first if number == 0 else (*first, chunk), document.revision)
            for number, chunk in enumerate(document.chunks)
        ]

    async def prefill(self, donor: Donor) -> Prefilled:
        """Prefill a donor, unless something had to leave the tiers for it: nobody may ever ask for it.

        Raises what the parts raise, and DeadlineExceeded.
        """
        prompt = await laid_out(self._parts.layout, (ChatMessage("user", "?"),), donor.chunks, max_tokens=1)
        request = AdmissionRequest(
            f"donor_{uuid4().hex}",
            namespace_of(donor.tenant),
            Prompt(prompt.prefix),
            (donor.revision,),
            # Composed KV is not kept.
            reuse=Reuse.EXACT,
        )
        return await self._idle.spend(partial(self._prefill.attempt, request, evicting=False))


_POLL_S = 0.5
"""Between two looks at a job, or at a retriever that is away."""

log = structlog.get_logger(__name__)


class Ingested(NamedTuple):
    """A job that ingests one document, or any number of them if ``document_id`` is None."""

    tenant: str
    job: IngestJob
    document_id: str | None


class IngestedPrefill:
    """Prefills the chunks of ingested documents, one after another, as ``Donors`` does.

    Jobs are forgotten when the gateway stops. Switched off, it does nothing.
    """

    def __init__(self, retriever: Retriever, donors: Donors, metrics: GatewayMetrics, *, enabled: bool) -> None:
        self._retriever = retriever
        self._donors = donors
        self._metrics = metrics
        self._enabled = enabled
        self._waiting: asyncio.Queue[Ingested] = asyncio.Queue()

    def note(self, tenant: str, job: IngestJob, document_id: str | None = None) -> None:
        """Prefill a job's documents once it has ended."""
        if self._enabled:
            self._waiting.put_nowait(Ingested(tenant, job, document_id))

    def prefilling(self) -> AbstractAsyncContextManager[None]:
        """Prefill in the background while the context is open."""
        return in_background(self._run())

    async def _run(self) -> None:
        while True:
            ingested = await self._waiting.get()
            try:
                await self._prefill_all(ingested)
            except RagtreeError as error:
                log.warning("ingested_documents_not_prefilled", job_id=ingested.job.job_id, error=str(error))
            except Exception:
                # Waiting documents go on.
                log.exception("ingested_documents_not_prefilled", job_id=ingested.job.job_id)

    async def _prefill_all(self, ingested: Ingested) -> None:
        tenant, job, _ = ingested
        if (await self._ended(tenant, job)).status == "failed":
            return
        async for document_id in self._documents(ingested):
            with self._failing(document_id):
                for donor in await self._donors.of_document(tenant, job.collection, document_id):
                    with self._failing(document_id):
                        self._metrics.ingested.labels((await self._donors.prefill(donor)).outcome).inc()

    @contextmanager
    def _failing(self, document_id: str) -> Iterator[None]:
        """Record an error of the block, and go on after it."""
        try:
            yield
        except RagtreeError as error:
            # It may have been deleted since.
            log.warning("document_not_prefilled", document_id=document_id, error=str(error))
            self._metrics.ingested.labels("failed").inc()

    async def _ended(self, tenant: str, job: IngestJob) -> IngestJob:
        """The job once it has ended."""
        while not job.ended:
            await asyncio.sleep(_POLL_S)
            try:
                job = await self._retriever.get_job(tenant, job.job_id)
            except Unavailable:
                continue
        return job

    async def _documents(self, ingested: Ingested) -> AsyncIterator[str]:
        """The job's one document, or all that were stored since it began, so at least its own."""
        tenant, job, only = ingested
        if only is not None:
            yield only
            return
        async for document in self._donors.documents(tenant, job.collection):
            if document.updated_at >= job.created_at:
                yield document.document_id
