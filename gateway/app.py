"""The gateway as one ASGI app."""

from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from gateway.composition import Composition
from gateway.middleware.identity import CrossSite, Identity
from gateway.middleware.request_context import RequestContext
from gateway.middleware.request_limits import BodyLimit, OpenRequests
from gateway.middleware.slow_readers import SlowReaders
from gateway.query.tracing import Tracing
from gateway.routes import adapters, admin, documents, health, openai, page, query
from gateway.routes.dependencies import Gateway
from gateway.routes.error_handlers import install_handlers
from gateway.settings import GatewaySettings
from gateway.stores.stores import EmbeddedStores, Stores
from gateway.wire import openapi
from protocol.parts import Parts

_ROUTES = (query, documents, openai, admin, adapters, health, page)


def create_app(
    parts: Parts,
    settings: GatewaySettings,
    *,
    data_dir: Path | None = None,
    registry: CollectorRegistry | None = None,
    stores: Stores | None = None,
    tracing: Tracing | None = None,
) -> FastAPI:
    """The ASGI app over the given parts. Raises ConfigError for keys that cannot be used.

    ``data_dir`` is the gateway's own folder; without it, there is no query log. ``stores`` default to that folder and
    memory, ``registry`` for the metrics to a new one, and ``tracing`` to no spans; it is closed at shutdown.

    The server must run the app's lifespan, which watches the parts and releases all leases at shutdown.
    """
    stores = stores or EmbeddedStores(data_dir, settings)
    composition = Composition(parts, settings, stores, registry or CollectorRegistry(), tracing or Tracing())
    gateway = composition.gateway

    app = FastAPI(
        title="RAGTree",
        version=version("ragtree"),
        # Not include_router: it would analyse all signatures again for each app.
        routes=[route for module in _ROUTES for route in module.router.routes],
        lifespan=lambda _app: composition.running(),
        docs_url=None,
        redoc_url=None,
    )
    app.state.gateway = gateway
    install_handlers(app, gateway.metrics, settings.pace.retry_after_s)
    _add_middleware(app, gateway)
    keyring = gateway.keyring
    openapi.describe(app, {openapi.API_KEY: keyring.needs_key, openapi.ADMIN_KEY: keyring.needs_admin_key})
    return app


def _add_middleware(app: FastAPI, gateway: Gateway) -> None:
    """Add the middleware, innermost first."""
    settings = gateway.settings
    retry_after_s = settings.pace.retry_after_s
    app.add_middleware(BodyLimit, settings=settings, metrics=gateway.metrics)
    app.add_middleware(SlowReaders, send_timeout_s=settings.pace.send_timeout_s)
    app.add_middleware(OpenRequests, settings=settings, metrics=gateway.metrics)
    app.add_middleware(Identity, keyring=gateway.keyring, metrics=gateway.metrics, retry_after_s=retry_after_s)
    if not gateway.keyring.needs_key:
        app.add_middleware(CrossSite, retry_after_s=retry_after_s)
    app.add_middleware(RequestContext, metrics=gateway.http_metrics, retry_after_s=retry_after_s)
