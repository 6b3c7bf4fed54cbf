"""Limits on request bodies: size, upload time, and memory for all bodies together."""

import asyncio
import re

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.settings import GatewaySettings
from gateway.wire.errors import error_response
from protocol.errors import PayloadTooLarge

_MANY = re.compile(r"/v1/collections/[^/]+/documents|/v1/admin/cache/warm")
"""Paths that accept documents or logs of queries."""
_FULL = "The memory for request bodies is full; try again later."


class BodyLimit:
    """Refuses bodies over the limit of their path: before reading if the length is declared, else while reading.

    Received bytes count as held until their request is answered. A body is refused if its declared or received bytes
    would raise the total over ``max_bodies_bytes``. For other bodies, only its received bytes count.
    """

    def __init__(self, app: ASGIApp, settings: GatewaySettings, metrics: GatewayMetrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._held = 0

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
            await error_response(error, self._settings.retry_after_s)(scope, receive, send)
            return
        received = 0
        complete = False
        overdue_at = asyncio.get_running_loop().time() + self._settings.body_timeout_s

        async def counted() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()
            # While it reads a body, FastAPI turns any error but HTTPException into a 400.
            if self._held + max(0, declared - received) > self._settings.max_bodies_bytes:
                raise HTTPException(503, _FULL)
            try:
                async with asyncio.timeout_at(overdue_at):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"The body took longer than {self._settings.body_timeout_s:g} s.") from None
            size = len(message.get("body", b""))
            received += size
            self._held += size
            complete = not message.get("more_body", False)
            if received > limit:
                raise HTTPException(413, _message(limit))
            if self._held > self._settings.max_bodies_bytes:
                raise HTTPException(503, _FULL)
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._held -= received

    def _limit(self, path: str) -> int:
        return self._settings.max_document_bytes if _MANY.match(path) else self._settings.max_query_bytes


def _declared(scope: Scope) -> int:
    length = Headers(scope=scope).get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() else 0


def _message(limit: int) -> str:
    return f"The body is larger than {limit:,} bytes, the limit of this path."
