"""How large a request's body may be, how long it may take, and how much of all bodies is held at once."""

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
"""Where documents or whole logs of queries come in."""


class BodyLimit:
    """Refuses bodies over the limit of their path: before reading where the length is declared, else while counting.

    What has come of a body counts as held until its request is answered. Where all that is held would exceed
    ``max_bodies_bytes``, the body that comes is refused: a client that declares much and sends nothing holds nothing.
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
            # FastAPI turns any error but HTTPException into a 400 where it reads a body.
            if self._held + max(0, declared - received) > self._settings.max_bodies_bytes:
                raise HTTPException(503, "As many bodies are being read as fit into memory; try again later.")
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
                raise HTTPException(503, "As many bodies are being read as fit into memory; try again later.")
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
    return f"The body is larger than the {limit:,} bytes allowed here."
