"""The gateway as one ASGI app."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from gateway import openapi
from gateway.auth import Keyring
from gateway.body_limit import BodyLimit
from gateway.dependencies import Gateway
from gateway.handlers import install_handlers
from gateway.lease import Releases
from gateway.metrics import GatewayMetrics
from gateway.middleware import RequestContext
from gateway.pipeline import QueryPipeline
from gateway.readiness import Readiness
from gateway.routes import documents, health, query
from gateway.routes import openai as openai_routes
from gateway.runs import QueryRuns
from gateway.settings import GatewaySettings
from protocol.parts import Controller, Generator, PromptLayout, Retriever


def create_app(
    retriever: Retriever,
    controller: Controller,
    generator: Generator,
    layout: PromptLayout,
    settings: GatewaySettings,
    *,
    registry: CollectorRegistry | None = None,
) -> FastAPI:
    """The ASGI app over the given parts; ``registry`` holds its metrics, a new one by default.

    Its lifespan watches the parts and, at shutdown, gives every lease back, so a server must run it.
    Raises ConfigError for keys that cannot be used.
    """
    metrics = GatewayMetrics(registry or CollectorRegistry())
    releases = Releases()
    readiness = Readiness(retriever, controller, generator, settings.readiness_interval_s, settings.readiness_timeout_s)
    pipeline = QueryPipeline(
        retriever=retriever,
        controller=controller,
        generator=generator,
        layout=layout,
        metrics=metrics,
        releases=releases,
        settings=settings,
    )
    runs = QueryRuns(pipeline, readiness.heard)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with readiness.watched():
            yield
            await runs.shutdown()
            await releases.drain(settings.drain_s)

    app = FastAPI(title="RAGTree", version="0.1.0", lifespan=lifespan, docs_url="/docs", redoc_url=None)
    app.state.gateway = Gateway(retriever, runs, readiness, Keyring.from_settings(settings), metrics, settings)
    install_handlers(app, metrics, settings.retry_after_s)
    app.add_middleware(BodyLimit, settings=settings, metrics=metrics)
    app.add_middleware(RequestContext, retry_after_s=settings.retry_after_s)
    for routes in (query, documents, openai_routes, health):
        app.include_router(routes.router)
    openapi.describe(app, keyed=bool(settings.api_keys))
    return app
