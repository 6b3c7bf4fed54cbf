"""How large a request's body may be."""

import re

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import error_response
from gateway.metrics import GatewayMetrics
from gateway.settings import GatewaySettings
from protocol.errors import PayloadTooLarge

_MANY = re.compile(r"/v1/collections/[^/]+/documents|/v1/admin/cache/warm")
"""Where documents or whole logs of queries come in."""


class BodyLimit:
    """Refuses bodies over the limit of their path: before reading where the length is declared, else while counting."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings, metrics: GatewayMetrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limit(scope["path"])
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isascii() and declared.isdigit() and int(declared) > limit:
            self._metrics.rejected(PayloadTooLarge.code)
            error = PayloadTooLarge(_message(limit))
            await error_response(error, self._settings.retry_after_s)(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                # FastAPI turns any error but this one into a 400 where it reads a body.
                raise HTTPException(413, _message(limit))
            return message

        await self._app(scope, counted, send)

    def _limit(self, path: str) -> int:
        return self._settings.max_document_bytes if _MANY.match(path) else self._settings.max_query_bytes


def _message(limit: int) -> str:
    return f"The body is larger than the {limit:,} bytes allowed here."
