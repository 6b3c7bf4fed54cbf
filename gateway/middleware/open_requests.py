"""Limit on open requests, which bounds every queue behind the gateway that has no bound of its own."""

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.limits.room import Room
from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.middleware.identity import caller_of
from gateway.settings import GatewaySettings
from gateway.wire.errors import error_response
from protocol.errors import Overloaded, RateLimited

MOST_OF_STRANGERS = 64
"""Open requests of all strangers together. They can only read the page and descriptions, which takes milliseconds."""
_ALWAYS = {"/healthz", "/readyz", "/metrics"}
"""Paths that must answer under load too. All requests that wait for one of them wait for the same answer."""


class OpenRequests:
    """Refuses requests over ``max_open_requests`` before reading them. Strangers have their own room."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings, metrics: GatewayMetrics) -> None:
        self._app = app
        self._retry_after_s = settings.pace.retry_after_s
        self._metrics = metrics
        self._callers = Room("open requests", settings.max_open_requests, fair=settings.several_keys)
        self._strangers = Room("open requests without a key", MOST_OF_STRANGERS, fair=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["path"] in _ALWAYS:
            await self._app(scope, receive, send)
            return
        caller = caller_of(scope)
        room, owner = (self._strangers, "") if caller is None else (self._callers, caller.owner)
        try:
            room.take(owner)
        except (Overloaded, RateLimited) as error:
            self._metrics.rejected(error.code)
            await error_response(error, self._retry_after_s)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            room.give_back(owner)
