"""Replies whose clients do not read them."""

import asyncio
from collections.abc import Iterator

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = structlog.get_logger(__name__)

PIECE_BYTES = 64 * 1024
"""How much a server may hold of a reply. uvicorn takes more only once less than that is unsent."""


class SlowReaders:
    """Keeps a request open until its client has read the reply, except for the last ``PIECE_BYTES``.

    A server takes a body of any size at once and holds it for its client, where nothing counts it. So a long body is
    passed on in pieces. A client that takes none for ``send_timeout_s`` loses its connection. Streams of events have
    this limit themselves.
    """

    def __init__(self, app: ASGIApp, send_timeout_s: float) -> None:
        self._app = app
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        streams = False

        async def read(message: Message) -> None:
            nonlocal streams
            if message["type"] == "http.response.start":
                streams = any(
                    name.lower() == b"content-type" and value.startswith(b"text/event-stream")
                    for name, value in message["headers"]
                )
            if streams:
                await send(message)
            else:
                await self._send(message, send)

        try:
            await self._app(scope, receive, read)
        except _DoesNotRead:
            # The server closes the connection of an incomplete response.
            log.info("client_does_not_read", path=scope["path"])

    async def _send(self, message: Message, send: Send) -> None:
        for piece in _pieces(message):
            try:
                async with asyncio.timeout(self._send_timeout_s):
                    await send(piece)
                    if piece.get("more_body"):
                        # A client that reads as fast as the server sends must not keep the loop from others.
                        await asyncio.sleep(0)
            except TimeoutError:
                raise _DoesNotRead from None


class _DoesNotRead(Exception):
    """The client has taken nothing for ``send_timeout_s``."""


def _pieces(message: Message) -> Iterator[Message]:
    body = message.get("body", b"")
    if len(body) <= PIECE_BYTES:
        yield message
        return
    for start in range(0, len(body), PIECE_BYTES):
        yield {"type": message["type"], "body": body[start : start + PIECE_BYTES], "more_body": True}
    # The empty last message is sent once the piece before it is.
    yield {**message, "body": b""}
