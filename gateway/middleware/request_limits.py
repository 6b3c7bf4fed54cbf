"""Limits on open requests and on their bodies: they bound every queue that has no bound itself."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.limits.room import Room
from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.middleware.identity import caller_of
from gateway.settings import GatewaySettings
from gateway.wire.errors import BodyRefused, error_response
from protocol.errors import Overloaded, PayloadTooLarge, RateLimited

MOST_OF_STRANGERS = 64
"""Open requests of all strangers together. They can only read the page and descriptions, which takes milliseconds."""
_ALWAYS = {"/healthz", "/readyz", "/metrics"}
"""Paths that must answer under load too. All requests that wait for one wait for the same answer."""


class OpenRequests:
    """Refuses requests over ``max_open_requests`` before reading them. Strangers have their own room."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings, metrics: GatewayMetrics) -> None:
        self._app = app
        self._retry_after_s = settings.pace.retry_after_s
        self._metrics = metrics
        self._callers = Room("open requests", settings.max_open_requests, fair=settings.several_keys)
        self._strangers = Room("open requests without a key", MOST_OF_STRANGERS)

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


_MANY = re.compile(r"/v1/collections/[^/]+/documents|/v1/admin/cache/warm")
"""Paths that accept documents or logs of queries."""
_BEHIND = 0.1
"""How far a body may be behind the slowest pace, as a share of ``body_timeout_s``."""


class BodyLimit:
    """Refuses bodies over the limit of their path: before reading if the length is declared, else while reading.

    Received bytes count as held until their request is answered. A body is refused if its declared or received bytes
    would raise the total over ``max_bodies_bytes``, or its caller's over a fair share of it. For other bodies, only
    its received bytes count.

    A body has ``body_timeout_s``. On the way it may be behind the slowest pace, that of the longest query in this time,
    by a tenth of it: a sender of single bytes holds nothing for long.
    """

    def __init__(self, app: ASGIApp, settings: GatewaySettings, metrics: GatewayMetrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._room = Room("bytes of bodies", settings.max_bodies_bytes, fair=settings.several_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limit(scope["path"])
        declared = _declared(scope)
        if declared > limit:
            self._metrics.rejected(PayloadTooLarge.code)
            error = PayloadTooLarge(_message(limit))
            await error_response(error, self._settings.pace.retry_after_s)(scope, receive, send)
            return
        caller = caller_of(scope)
        owner = "" if caller is None else caller.owner
        received = 0
        complete = False
        began_at = asyncio.get_running_loop().time()

        async def counted() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()
            with _refusals():
                self._room.check(owner, max(0, declared - received), received)
            try:
                async with asyncio.timeout_at(began_at + self._allowed_s(received)):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "The body arrived too slowly.") from None
            size = len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received + size > limit:
                raise BodyRefused(PayloadTooLarge(_message(limit)))
            with _refusals():
                self._room.take(owner, size, received)
            received += size
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._room.give_back(owner, received)

    def _allowed_s(self, received: int) -> float:
        """How long a body may take until more of it arrives than ``received`` bytes."""
        whole_s = self._settings.pace.body_timeout_s
        return min(whole_s, whole_s * (_BEHIND + received / self._settings.max_query_bytes))

    def _limit(self, path: str) -> int:
        return self._settings.max_document_bytes if _MANY.match(path) else self._settings.max_query_bytes


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (Overloaded, RateLimited) as error:
        raise BodyRefused(error) from None


def _declared(scope: Scope) -> int:
    length = Headers(scope=scope).get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() else 0


def _message(limit: int) -> str:
    return f"The body is larger than {limit:,} bytes, the limit of this path."
