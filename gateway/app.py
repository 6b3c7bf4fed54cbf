"""The gateway as one ASGI app."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, ProcessCollector

from gateway.background.forgetting import Forgetting
from gateway.background.replay import Replay
from gateway.background.warmup import WarmUps
from gateway.background_tasks import BackgroundTasks
from gateway.limits.auth import Keyring
from gateway.limits.quotas import Quotas
from gateway.metrics.cache_metrics import CacheMetrics
from gateway.metrics.engine_metrics import EngineMetrics
from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.metrics.http_metrics import HttpMetrics
from gateway.metrics.ingest_metrics import IngestMetrics
from gateway.metrics.part_metrics import Scrape
from gateway.metrics.state_metrics import StateMetrics
from gateway.middleware.body_limit import BodyLimit
from gateway.middleware.cross_site import CrossSite
from gateway.middleware.open_requests import OpenRequests
from gateway.middleware.request_context import RequestContext
from gateway.query.pipeline import QueryPipeline
from gateway.query.runs import QueryRuns
from gateway.query.speculation_start import SpeculationStart
from gateway.query.tracing import Tracing
from gateway.readiness import Readiness
from gateway.routes import admin, docs, documents, health, page, query
from gateway.routes import openai as openai_routes
from gateway.routes.dependencies import Gateway
from gateway.routes.error_handlers import install_handlers
from gateway.settings import GatewaySettings
from gateway.stores.recent_documents import RecentDocuments
from gateway.stores.stores import EmbeddedStores, Stores
from gateway.stores.uploads import Uploads
from gateway.wire import openapi
from protocol.parts import Parts


def create_app(
    parts: Parts,
    settings: GatewaySettings,
    *,
    data_dir: Path | None = None,
    registry: CollectorRegistry | None = None,
    stores: Stores | None = None,
    tracing: Tracing | None = None,
) -> FastAPI:
    """The ASGI app over the given parts.

    ``data_dir`` is the gateway's own folder, without which it keeps no query log; ``registry`` holds its metrics, a new
    one by default; ``stores`` are its own, in that folder and in memory, unless others are given; ``tracing`` makes the
    spans of queries, none by default, and is closed at shutdown.

    Its lifespan watches the parts and, at shutdown, gives every lease back, so a server must run it.
    Raises ConfigError for keys that cannot be used.
    """
    registry = registry or CollectorRegistry()
    tracing = tracing or Tracing()
    metrics, http_metrics = GatewayMetrics(registry), HttpMetrics(registry)
    keyring = Keyring.from_settings(settings)
    tasks = BackgroundTasks()
    stores = stores or EmbeddedStores(data_dir, settings)
    readiness = Readiness(
        parts.retriever,
        parts.controller,
        parts.generator,
        settings.readiness_interval_s,
        settings.readiness_timeout_s,
    )
    recent = RecentDocuments()
    pipeline = QueryPipeline(
        parts,
        metrics=metrics,
        tasks=tasks,
        query_log=stores.query_log,
        settings=settings,
        speculation_start=SpeculationStart(),
        tracing=tracing,
        recent=recent,
    )
    runs = QueryRuns(pipeline, readiness.heard)
    forgetting = Forgetting(parts.retriever, parts.controller, settings)
    replay = Replay(parts, runs=runs, readiness=readiness, tasks=tasks, settings=settings)
    warm_ups = WarmUps(replay, stores.query_log, settings)
    asked_s = settings.readiness_timeout_s
    scrape = Scrape(
        CacheMetrics(registry, parts.controller, readiness, asked_s),
        IngestMetrics(registry, parts.retriever, asked_s),
        EngineMetrics(registry, parts.generator, asked_s),
    )
    StateMetrics(registry, runs, readiness, version("ragtree"))
    ProcessCollector(registry=registry)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with stores.opened(), readiness.watched(), forgetting.sweeping():
            yield
            await warm_ups.shutdown()
            await runs.shutdown()
            await tasks.drain(settings.drain_s)
            await asyncio.to_thread(tracing.close)

    app = FastAPI(title="RAGTree", version=version("ragtree"), lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.gateway = Gateway(
        retriever=parts.retriever,
        controller=parts.controller,
        layout=parts.layout,
        uploads=Uploads(parts.retriever, stores.upload_records, readiness),
        runs=runs,
        forgetting=forgetting,
        warm_ups=warm_ups,
        readiness=readiness,
        keyring=keyring,
        quotas=Quotas(stores.windows, tasks, settings),
        stores=stores,
        metrics=metrics,
        http_metrics=http_metrics,
        scrape=scrape,
        recent_documents=recent,
        settings=settings,
    )
    install_handlers(app, metrics, settings.retry_after_s)
    app.add_middleware(BodyLimit, settings=settings, metrics=metrics)
    app.add_middleware(OpenRequests, settings=settings, metrics=metrics)
    if not keyring.asks:
        app.add_middleware(CrossSite, retry_after_s=settings.retry_after_s)
    app.add_middleware(RequestContext, metrics=http_metrics, retry_after_s=settings.retry_after_s)
    for routes in (query, documents, openai_routes, admin, health, page, docs):
        app.include_router(routes.router)
    openapi.describe(app, {openapi.API_KEY: keyring.asks, openapi.ADMIN_KEY: keyring.asks_administrators})
    return app
