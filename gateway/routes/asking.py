"""Starts queries, and streams or awaits their answers, for the routes that answer questions."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import msgspec
import structlog
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from gateway.limits.quotas import QueryTicket
from gateway.query.query import Query
from gateway.query.runs import Choices, QueryRun, Running
from gateway.routes.dependencies import Gateway
from gateway.settings import GatewaySettings
from gateway.tasks import Deadline
from gateway.wire.errors import ErrorReply, error_body
from gateway.wire.events import Event
from gateway.wire.openai.choice_stream import ChoiceStream
from gateway.wire.openai.response_events import ResponseEvent, ResponseEvents
from protocol.errors import InvalidRequest, RagtreeError

T = TypeVar("T")

_HEADERS = {"Cache-Control": "no-cache"}  # EventSourceResponse adds X-Accel-Buffering: no
log = structlog.get_logger(__name__)
_encode = msgspec.json.Encoder().encode


class RunResponse(EventSourceResponse):
    """Streams a query's frames as server-sent events. Cancels the query if the client disconnects or stops reading.

    sse-starlette sends pings, always detects a client's disconnect, and lets streams end at shutdown. The alternatives
    do not fit. ``fastapi.sse`` starts the response before the first event, so errors cannot become statuses, and a
    route cannot reply with both JSON and events. starlette's StreamingResponse sends no pings and, on newer servers,
    detects a disconnect only at the next write.
    """

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


async def start_query(query: Query, gateway: Gateway, ticket: QueryTicket) -> QueryRun:
    """Start a query, if the engine can sample as it asks. Raises what ``Generator.check`` does, before it searches."""
    await _check(query, gateway)
    run = gateway.runs.start(query, ticket.used)
    ticket.follow(run)
    return run


async def start_choices(query: Query, count: int, gateway: Gateway, ticket: QueryTicket) -> Choices:
    """Start ``count`` answers to a query, each of which takes a slot.

    Raises RateLimited or Overloaded, and what ``start_query`` raises.
    """
    if count > 1 and query.sampling.temperature == 0:
        raise InvalidRequest("Several choices need a temperature above 0: without it, all of them are the same.", "n")
    if count > 1 and query.context_only:
        raise InvalidRequest("The context is the same for all choices: with only_need_context, there is one.", "n")
    ticket.take_slots(count - 1)
    await _check(query, gateway)
    choices = Choices(gateway.runs, query, count, ticket.used)
    ticket.follow(choices)
    return choices


async def streamed(run: Running, frames: AsyncIterator[bytes], request: Request, gateway: Gateway) -> RunResponse:
    """Stream the frames of a request's queries once the response may start. Raises an error before as a status."""
    await while_connected(request, run, run.started())
    return RunResponse(run, frames, gateway.settings)


async def while_connected(request: Request, run: Running, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work`` on ``run``. Raises ClientDisconnect if the client disconnects first.

    Cancels the run on any error, on cancellation, and on a disconnect. The server does not cancel the handler of a
    disconnected client, so this waits for the ASGI message, which is cheaper than polling ``is_disconnected()``.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    except BaseException:
        run.cancel()
        raise
    finally:
        working.cancel()
        leaving.cancel()
        # The response reads the same channel: two readers would take messages from each other.
        await asyncio.wait({leaving})


async def _check(query: Query, gateway: Gateway) -> None:
    if query.sampling.needs_check:
        deadline = Deadline(gateway.settings.query_timeout_s)
        try:
            await deadline.wait(gateway.parts.generator.check(query.sampling, query.caller))
        except InvalidRequest as error:
            raise query.in_callers_words(error) from error


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def event_frames(run: QueryRun, response: ResponseEvents | None = None) -> AsyncIterator[bytes]:
    """The run's events as frames, or those of OpenAI's ``response``. The last one is the only terminal event."""
    try:
        async for event in run.events():
            for one in [event] if response is None else response.of(event):
                yield frame(one)
    except RagtreeError as error:
        yield frame((response or run.transcript).failed(error))


def frame(event: Event | ResponseEvent) -> bytes:
    """One event in wire format. JSON escapes line breaks, so the data is a single line."""
    return b"event: %b\ndata: %b\n\n" % (str(type(event).__struct_config__.tag).encode(), _encode(event))


async def chunk_frames(choices: Choices, chunks: ChoiceStream[Any]) -> AsyncIterator[bytes]:
    """The events of choices as OpenAI's unnamed chunks, then ``[DONE]``. A late error becomes a last chunk instead."""
    try:
        async for index, event in choices.events():
            for chunk in chunks.of(index, event):
                yield b"data: %b\n\n" % _encode(chunk)
        yield b"data: [DONE]\n\n"
    except RagtreeError as error:
        yield b"data: %b\n\n" % _encode(ErrorReply(error_body(error)))
