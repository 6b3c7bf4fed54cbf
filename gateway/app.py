"""The gateway as one ASGI app."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from gateway import openapi
from gateway.auth import Keyring
from gateway.body_limit import BodyLimit
from gateway.cache_metrics import CacheMetrics
from gateway.cross_site import CrossSite
from gateway.dependencies import Gateway
from gateway.forgetting import Forgetting
from gateway.handlers import install_handlers
from gateway.lease import Releases
from gateway.metrics import GatewayMetrics
from gateway.middleware import RequestContext
from gateway.pipeline import QueryPipeline
from gateway.query_log import QueryLog
from gateway.readiness import Readiness
from gateway.recent_documents import RecentDocuments
from gateway.replay import Replay
from gateway.routes import admin, docs, documents, health, page, query
from gateway.routes import openai as openai_routes
from gateway.runs import QueryRuns
from gateway.settings import GatewaySettings
from gateway.settling import Settling
from gateway.warmup import WarmUps
from protocol.parts import Parts


def create_app(
    parts: Parts,
    settings: GatewaySettings,
    *,
    data_dir: Path | None = None,
    registry: CollectorRegistry | None = None,
) -> FastAPI:
    """The ASGI app over the given parts.

    ``data_dir`` is the gateway's own folder, without which it keeps no query log; ``registry`` holds its metrics, a new
    one by default.

    Its lifespan watches the parts and, at shutdown, gives every lease back, so a server must run it.
    Raises ConfigError for keys that cannot be used.
    """
    metrics = GatewayMetrics(registry or CollectorRegistry())
    keyring = Keyring.from_settings(settings)
    releases = Releases()
    query_log = QueryLog(data_dir, settings.query_log_mib)
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
        releases=releases,
        query_log=query_log,
        settings=settings,
        settling=Settling(),
        recent=recent,
    )
    runs = QueryRuns(pipeline, readiness.heard)
    forgetting = Forgetting(parts.retriever, parts.controller, settings)
    replay = Replay(parts, runs=runs, readiness=readiness, releases=releases, settings=settings)
    warm_ups = WarmUps(replay, query_log, settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with readiness.watched(), forgetting.sweeping():
            yield
            await warm_ups.shutdown()
            await runs.shutdown()
            await releases.drain(settings.drain_s)
            await query_log.close()

    app = FastAPI(title="RAGTree", version="0.1.0", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.gateway = Gateway(
        retriever=parts.retriever,
        controller=parts.controller,
        layout=parts.layout,
        runs=runs,
        forgetting=forgetting,
        warm_ups=warm_ups,
        readiness=readiness,
        keyring=keyring,
        metrics=metrics,
        cache_metrics=CacheMetrics(metrics.registry, parts.controller, readiness, settings.readiness_timeout_s),
        recent_documents=recent,
        settings=settings,
    )
    install_handlers(app, metrics, settings.retry_after_s)
    app.add_middleware(BodyLimit, settings=settings, metrics=metrics)
    if not keyring.asks:
        app.add_middleware(CrossSite, retry_after_s=settings.retry_after_s)
    app.add_middleware(RequestContext, retry_after_s=settings.retry_after_s)
    for routes in (query, documents, openai_routes, admin, health, page, docs):
        app.include_router(routes.router)
    openapi.describe(app, {openapi.API_KEY: keyring.asks, openapi.ADMIN_KEY: keyring.asks_administrators})
    return app
