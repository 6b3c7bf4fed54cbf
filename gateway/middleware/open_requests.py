"""Limit on open requests, which bounds every queue behind the gateway that has no bound of its own."""

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.settings import GatewaySettings
from gateway.wire.errors import error_response
from protocol.errors import Overloaded

_ALWAYS = {"/healthz", "/readyz", "/metrics"}
"""Paths that must answer under load too."""


class OpenRequests:
    """Refuses requests over ``max_open_requests`` before reading them."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings, metrics: GatewayMetrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["path"] in _ALWAYS:
            await self._app(scope, receive, send)
        elif self._open >= self._settings.max_open_requests:
            self._metrics.rejected(Overloaded.code)
            error = Overloaded(f"{self._open:,} requests are open, the gateway's limit; try again later.")
            await error_response(error, self._settings.retry_after_s)(scope, receive, send)
        else:
            self._open += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._open -= 1
