"""Prefill of ingested documents in idle time, so that prompts have their KV before anybody has asked for them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

import structlog

from gateway.background.donors import Donors
from gateway.metrics.gateway_metrics import GatewayMetrics
from protocol.documents import IngestJob
from protocol.errors import RagtreeError, Unavailable
from protocol.parts import Retriever
from protocol.repeating import in_background

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
            except Exception:
                # What waits behind it goes on.
                log.exception("ingested_documents_not_prefilled", job_id=ingested.job.job_id)

    async def _prefill_all(self, ingested: Ingested) -> None:
        tenant, job, _ = ingested
        if (await self._ended(tenant, job)).status == "failed":
            return
        async for document_id in self._documents(ingested):
            with self._failing(document_id):
                for donor in await self._donors.of_document(tenant, job.collection, document_id):
                    with self._failing(document_id):
                        self._metrics.prefilled_ingested((await self._donors.prefill(donor)).outcome)

    @contextmanager
    def _failing(self, document_id: str) -> Iterator[None]:
        """Record an error of the block, and go on behind it."""
        try:
            yield
        except RagtreeError as error:
            # It may have been deleted since.
            log.warning("document_not_prefilled", document_id=document_id, error=str(error))
            self._metrics.prefilled_ingested("failed")

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
