"""``POST /search``: finds the chunks that a query would be answered from."""

from typing import Any

from fastapi import APIRouter, Depends
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from gateway.routes.bodies import json_response
from gateway.routes.dependencies import CallerDep, GatewayDep, SearchSlotDep, json_only
from gateway.routes.json_route import JsonRoute
from gateway.search.laid_out import fitting
from gateway.wire.openapi import errors, json_reply
from gateway.wire.search import FindBody, SearchReply
from protocol.graph import UNBOUNDED

router = APIRouter(tags=["query"], route_class=JsonRoute)

_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: json_reply(SearchReply, "The chunks found, best first."),
    **errors(400, 401, 404, 408, 409, 413, 415, 422, 429, 500, 503),
}


@router.post("/search", responses=_RESPONSES, dependencies=[Depends(json_only)], summary="Search without an answer")
@router.post("/v1/search", responses=_RESPONSES, dependencies=[Depends(json_only)], summary="Search without an answer")
async def search(body: FindBody, caller: CallerDep, gateway: GatewayDep, _slot: SearchSlotDep) -> Response:
    """Find the chunks of a collection that fit a question best, without generating an answer.

    With budgets or ``only_need_context``, only what a query's prompt would contain.
    """
    question = body.query.strip()
    request = body.to_search(question, "query", caller.tenant, gateway.settings)
    gateway.readiness.require_retriever()
    found, timings = await gateway.searches.run(request)
    context: str | UnsetType = UNSET
    if body.only_need_context or body.budget != UNBOUNDED:
        found = await fitting(gateway.layout, question, found, gateway.settings.default_max_tokens, body.budget)
    if body.only_need_context:
        context = gateway.layout.context_text(found.docs, () if found.graph is None else found.graph.paths)
    return json_response(SearchReply.of(found, request.collection, timings, "results.text" in body.include, context))
