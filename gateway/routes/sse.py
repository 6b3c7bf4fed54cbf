"""Answers as server-sent events, with sse-starlette.

sse-starlette sends pings, always detects a client's disconnect, and lets streams end at shutdown. The alternatives do
not fit. ``fastapi.sse`` starts the response before the first event, so errors cannot become statuses, and a route
cannot reply with both JSON and events. starlette's StreamingResponse sends no pings and, on newer servers, detects a
disconnect only at the next write.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec
import structlog
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from gateway.query.runs import QueryRun, Running
from gateway.routes.openai.choices import Choices
from gateway.settings import GatewaySettings
from gateway.wire.errors import ErrorReply, error_body
from gateway.wire.events import Event
from gateway.wire.openai.response_events import ResponseEvent, ResponseEvents
from protocol.errors import RagtreeError

_HEADERS = {"Cache-Control": "no-cache"}  # EventSourceResponse adds X-Accel-Buffering: no
log = structlog.get_logger(__name__)
_encode = msgspec.json.Encoder().encode


class RunResponse(EventSourceResponse):
    """Streams a query's frames. Cancels the query if the client disconnects or stops reading."""

    def __init__(self, run: Running, frames: AsyncIterator[bytes], settings: GatewaySettings) -> None:
        super().__init__(
            frames,
            headers=_HEADERS,
            ping=settings.pace.ping_s,
            ping_message_factory=lambda: ServerSentEvent(comment="ping", sep="\n"),
            shutdown_grace_period=settings.query_timeout_s,
            # Otherwise a client that never reads would hold its answer and its slot forever.
            send_timeout=settings.pace.send_timeout_s,
        )
        # The server sets this header itself, and two headers could contradict each other.
        del self.headers["connection"]
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, and cancel the run at its end, even if no frame was read."""
        try:
            await super().__call__(scope, receive, send)
        except* SendTimeoutError:
            # The server closes the connection of an incomplete response.
            log.info("client_does_not_read", query_id=self._run.query_id)
        finally:
            self._run.cancel()


async def event_frames(run: QueryRun) -> AsyncIterator[bytes]:
    """The run's events as frames. The last one is the only terminal event."""
    try:
        async for event in run.events():
            yield frame(event)
    except RagtreeError as error:
        yield frame(run.transcript.failed(error))


def frame(event: Event | ResponseEvent) -> bytes:
    """One event in wire format. JSON escapes line breaks, so the data is a single line."""
    return b"event: %b\ndata: %b\n\n" % (str(type(event).__struct_config__.tag).encode(), _encode(event))


async def response_frames(run: QueryRun, response: ResponseEvents) -> AsyncIterator[bytes]:
    """The run's events as those of OpenAI's responses. The last one is the only terminal event."""
    try:
        async for event in run.events():
            for one in response.of(event):
                yield frame(one)
    except RagtreeError as error:
        yield frame(response.failed(error))


class Chunks(Protocol):
    """Converts the events of choices into the chunks of one of OpenAI's streams."""

    def of(self, index: int, event: Event) -> Sequence[msgspec.Struct]:
        """The chunks of a choice's next event."""


async def chunk_frames(choices: Choices, chunks: Chunks) -> AsyncIterator[bytes]:
    """The events of choices as OpenAI's unnamed chunks, then ``[DONE]``. A late error becomes a last chunk instead."""
    try:
        async for index, event in choices.events():
            for chunk in chunks.of(index, event):
                yield b"data: %b\n\n" % _encode(chunk)
        yield b"data: [DONE]\n\n"
    except RagtreeError as error:
        yield b"data: %b\n\n" % _encode(ErrorReply(error_body(error)))
