"""Starts queries, and streams or awaits their answers, for the routes that answer questions."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from gateway.deadline import Deadline
from gateway.limits.quotas import QueryTicket
from gateway.query.query import Query
from gateway.query.runs import QueryRun, Running
from gateway.routes.dependencies import Gateway
from gateway.routes.openai.choices import Choices
from gateway.routes.sse import RunResponse
from protocol.errors import InvalidRequest

T = TypeVar("T")


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
            await deadline.wait(gateway.generator.check(query.sampling, query.caller))
        except InvalidRequest as error:
            raise query.in_callers_words(error) from error


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
