"""The gateway's objects, built and wired once per app."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector

from gateway.background.cache_filling import CacheFilling
from gateway.background.donors import Donors, IngestedPrefill
from gateway.background.forgetting import Forgetting
from gateway.background.idle import IdlePrefill, IdleTime
from gateway.background.past_queries import PastQueries
from gateway.background.shadow import Shadow
from gateway.limits.auth import Keyring
from gateway.limits.quotas import Quotas
from gateway.metrics.gateway_metrics import GatewayMetrics, HttpMetrics, expose_state
from gateway.metrics.part_metrics import Scrape
from gateway.query.pipeline import QueryPipeline
from gateway.query.runs import QueryRuns
from gateway.query.search import Searches
from gateway.query.speculation_start import SpeculationStart
from gateway.query.tracing import Tracing
from gateway.readiness import Readiness
from gateway.routes.dependencies import Gateway
from gateway.settings import GatewaySettings
from gateway.stores.recent import ApproximateAnswers, RecentDocuments
from gateway.stores.stores import Stores
from gateway.stores.uploads import Uploads
from gateway.tasks import BackgroundTasks
from protocol.parts import Parts


class Composition:
    """Builds ``gateway``, the objects that routes use, and runs their background work.

    Raises ConfigError for keys that cannot be used.
    """

    def __init__(
        self, parts: Parts, settings: GatewaySettings, stores: Stores, registry: CollectorRegistry, tracing: Tracing
    ) -> None:
        self._tracing = tracing
        self._tasks = BackgroundTasks()
        pace = settings.pace
        readiness = Readiness(parts, pace.readiness_interval_s, pace.readiness_timeout_s)
        metrics, recent = GatewayMetrics(registry), RecentDocuments()
        approximate = ApproximateAnswers(settings.shadow_share)
        pipeline = QueryPipeline(
            parts,
            metrics=metrics,
            tasks=self._tasks,
            query_log=stores.query_log,
            settings=settings,
            speculation_start=SpeculationStart(),
            tracing=tracing,
            recent=recent,
            approximate=approximate,
        )
        runs = QueryRuns(pipeline, readiness.on_query_error)
        idle = IdleTime(runs, readiness)
        prefill = IdlePrefill(parts, self._tasks, settings)
        self._shadow = Shadow(approximate, idle, parts, metrics=metrics, tasks=self._tasks, settings=settings)
        past = PastQueries(parts, idle, prefill, stores.query_log, settings)
        donors = Donors(parts, idle, prefill)
        self._ingested = IngestedPrefill(parts.retriever, donors, metrics, enabled=settings.prefill_ingested)
        self.gateway = Gateway(
            parts=parts,
            uploads=Uploads(parts.retriever, stores.upload_records, readiness),
            runs=runs,
            searches=Searches(parts.retriever, metrics, self._tasks, settings, tracing),
            ingested=self._ingested,
            forgetting=Forgetting(parts, settings, readiness, metrics),
            filling=CacheFilling(parts, idle, past, donors, metrics),
            readiness=readiness,
            keyring=Keyring(settings),
            quotas=Quotas(stores.windows, self._tasks, settings),
            stores=stores,
            metrics=metrics,
            http_metrics=HttpMetrics(registry),
            scrape=Scrape(registry, parts, readiness, pace.readiness_timeout_s),
            recent_documents=recent,
            settings=settings,
        )
        expose_state(registry, runs, readiness, version("ragtree"))
        ProcessCollector(registry=registry)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the background work; at the end, cancel the running queries and release all leases."""
        gateway = self.gateway
        async with gateway.stores.opened(), gateway.readiness.watching(), gateway.forgetting.sweeping():
            async with self._shadow.comparing(), self._ingested.prefilling():
                yield
            await gateway.filling.warm_ups.shutdown()
            await gateway.filling.precomputations.shutdown()
            await gateway.runs.shutdown()
            await self._tasks.drain(gateway.settings.pace.drain_s)
            await asyncio.to_thread(self._tracing.close)
