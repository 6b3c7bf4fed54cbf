"""Answers as server-sent events.

sse-starlette rather than ``fastapi.sse``: FastAPI's starts a response before the endpoint's first event, so nothing
can fail as a status any more, and one route cannot answer JSON and events with it; starlette's own StreamingResponse
sends no pings and, on newer servers, notices a client that left only at the next write. sse-starlette pings, always
listens for the client, and lets streams end at shutdown.
"""

from collections.abc import AsyncIterator

import msgspec
import structlog
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from gateway.query.runs import QueryRun
from gateway.settings import GatewaySettings
from gateway.wire.events import Event
from protocol.errors import RagtreeError

_HEADERS = {"Cache-Control": "no-cache"}  # the class adds X-Accel-Buffering: no
log = structlog.get_logger(__name__)
_encode = msgspec.json.Encoder().encode


class RunResponse(EventSourceResponse):
    """A query's events on their way to a client; when the client leaves or stops reading, the query is cancelled."""

    def __init__(self, run: QueryRun, frames: AsyncIterator[bytes], settings: GatewaySettings) -> None:
        super().__init__(
            frames,
            headers=_HEADERS,
            ping=settings.ping_s,
            ping_message_factory=lambda: ServerSentEvent(comment="ping", sep="\n"),
            shutdown_grace_period=settings.query_timeout_s,
            # Or a client that never reads would hold its answer, and its place, for ever.
            send_timeout=settings.send_timeout_s,
        )
        # Whether the connection stays is the server's word; two headers about it may differ.
        del self.headers["connection"]
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response; the run ends with it even if its frames were never asked for."""
        try:
            await super().__call__(scope, receive, send)
        except* SendTimeoutError:
            # The server closes a connection whose response was not completed.
            log.info("client_does_not_read", query_id=self._run.transcript.query.query_id)
        finally:
            self._run.cancel()


async def event_frames(run: QueryRun) -> AsyncIterator[bytes]:
    """The run's events as frames, ending in exactly one terminal event."""
    try:
        async for event in run.events():
            yield frame(event)
    except RagtreeError as error:
        yield frame(run.transcript.failed(error))


def frame(event: Event) -> bytes:
    """One event as it stands on the wire: JSON escapes line breaks, so the data is a single line."""
    return b"event: %b\ndata: %b\n\n" % (str(type(event).__struct_config__.tag).encode(), _encode(event))
