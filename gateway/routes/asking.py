"""Starts queries, and streams their answers, for the routes that answer questions."""

from collections.abc import AsyncIterator

from starlette.requests import Request

from gateway.deadline import Deadline
from gateway.limits.quotas import QueryTicket
from gateway.query.query import Query
from gateway.query.runs import QueryRun
from gateway.routes.dependencies import Gateway
from gateway.routes.disconnect import while_connected
from gateway.routes.sse import RunResponse
from protocol.errors import InvalidRequest


async def start_query(query: Query, gateway: Gateway, ticket: QueryTicket) -> QueryRun:
    """Start a query, if the engine can sample as it asks. Raises InvalidRequest before anything is searched."""
    if query.sampling.needs_check:
        deadline = Deadline(gateway.settings.query_timeout_s)
        try:
            await deadline.wait(gateway.generator.check(query.sampling))
        except InvalidRequest as error:
            raise query.blamed(error) from error
    run = gateway.runs.start(query)
    ticket.follow(run)
    return run


async def streamed(run: QueryRun, frames: AsyncIterator[bytes], request: Request, gateway: Gateway) -> RunResponse:
    """Stream a query's frames once its response may start. Raises its error before: then it is still a status."""
    await while_connected(request, run, run.started())
    return RunResponse(run, frames, gateway.settings)
