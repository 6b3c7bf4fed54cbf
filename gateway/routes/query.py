"""``POST /query`` answers a question from documents, ``POST /search`` only finds what a query would answer from."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from gateway.limits.auth import Caller
from gateway.query.laid_out import fitting
from gateway.query.query import Query
from gateway.query.served_model import served_model
from gateway.routes.asking import event_frames, start_query, streamed, while_connected
from gateway.routes.bodies import JsonRoute, json_response
from gateway.routes.dependencies import CallerDep, Gateway, GatewayDep, QueryTicketDep, SearchSlotDep, json_only
from gateway.wire.events import QUERY_EVENTS
from gateway.wire.openapi import answer, errors, json_reply
from gateway.wire.reply import Reply, SearchReply, search_results
from gateway.wire.schemas import FindBody, QueryBody
from protocol.generation import Sampling
from protocol.graph import UNBOUNDED
from protocol.prompts import ChatMessage

router = APIRouter(tags=["query"], route_class=JsonRoute)

_EVENTS = (
    "With `stream`, the events `query.created`, `retrieval.stage` (on request), `retrieval.completed`, "
    "`cache.resolved`, `output_text.annotation.added`, `output_text.delta` and exactly one of `query.completed`, "
    "`query.incomplete`, `query.failed`."
)
_ERRORS = errors(400, 401, 404, 408, 409, 413, 415, 422, 429, 500, 503)
_ANSWERED = {200: answer(Reply, f"The answer. {_EVENTS}", *QUERY_EVENTS), **_ERRORS}
_FOUND = {200: json_reply(SearchReply, "The chunks found, best first."), **_ERRORS}


@router.post("/query", responses=_ANSWERED, dependencies=[Depends(json_only)], summary="Ask a question")
@router.post("/v1/query", responses=_ANSWERED, dependencies=[Depends(json_only)], summary="Ask a question")
async def ask(
    body: QueryBody,
    request: Request,
    caller: CallerDep,
    gateway: GatewayDep,
    ticket: QueryTicketDep,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """Answer a question from the documents of a collection."""
    run = await start_query(_query(body, caller, gateway), gateway, ticket)
    if body.stream or "text/event-stream" in accept.lower():
        return await streamed(run, event_frames(run), request, gateway)
    return json_response(await while_connected(request, run, run.reply()))


def _query(body: QueryBody, caller: Caller, gateway: Gateway) -> Query:
    settings = gateway.settings
    question = body.query.strip()
    search = body.to_search(question, "query", caller.tenant, settings)
    model = served_model(gateway.readiness.engine(), body.model)
    gateway.readiness.require_parts()
    return Query(
        namespace=model.namespace(caller.namespace),
        caller=caller.owner,
        model=model.name,
        search=search,
        messages=(ChatMessage("user", question),),
        question_field="query",
        sampling=Sampling(
            max_tokens=body.max_tokens or settings.default_max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            seed=body.seed,
            logprobs="logprobs" in body.include,
        ),
        include_stages="stages" in body.include,
        include_timeline="timeline" in body.include,
        include_text="results.text" in body.include,
        order=body.document_order or settings.default_document_order,
        reuse=body.reuse or caller.reuse,
        recompute_share=body.recompute_share,
        budget=body.budget,
        context_only=body.only_need_context,
    )


@router.post("/search", responses=_FOUND, dependencies=[Depends(json_only)], summary="Search without an answer")
@router.post("/v1/search", responses=_FOUND, dependencies=[Depends(json_only)], summary="Search without an answer")
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
        found = await fitting(gateway.parts.layout, question, found, gateway.settings.default_max_tokens, body.budget)
    if body.only_need_context:
        context = gateway.parts.layout.context_text(found.docs, () if found.graph is None else found.graph.paths)
    reply = SearchReply(
        collection=request.collection,
        search=found.search,
        results=search_results(found, request.collection, "results.text" in body.include),
        timings=timings,
        reranking=found.reranking,
        partial=bool(found.missing_shards),
        missing_shards=found.missing_shards,
        mode=found.mode,
        graph=found.graph,
        context=context,
    )
    return json_response(reply)
