"""Starts queries for the routes that answer questions."""

from gateway.deadline import Deadline
from gateway.limits.quotas import QueryTicket
from gateway.query.query import Query
from gateway.query.runs import QueryRun
from gateway.routes.dependencies import Gateway
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
