"""``POST /query``: answers a question from documents, as JSON or as a stream of events."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request
from starlette.responses import Response

from gateway.limits.auth import Caller
from gateway.query.query import Query
from gateway.routes.asking import start_query, streamed, while_connected
from gateway.routes.bodies import json_response
from gateway.routes.dependencies import CallerDep, Gateway, GatewayDep, QueryTicketDep, json_only
from gateway.routes.json_route import JsonRoute
from gateway.routes.sse import event_frames
from gateway.wire.openapi import QUERY_EVENTS, errors, event_stream, json_reply
from gateway.wire.reply import Reply
from gateway.wire.schemas import QueryBody
from protocol.generation import Sampling
from protocol.prompts import ChatMessage

router = APIRouter(tags=["query"], route_class=JsonRoute)

_EVENTS = (
    "With `stream`, the events `query.created`, `retrieval.stage` (on request), `retrieval.completed`, "
    "`cache.resolved`, `output_text.annotation.added`, `output_text.delta` and exactly one of `query.completed`, "
    "`query.incomplete`, `query.failed`."
)
_answered: dict[str, Any] = json_reply(Reply, f"The answer. {_EVENTS}")
_answered["content"]["text/event-stream"] = event_stream(*QUERY_EVENTS)
_RESPONSES = {200: _answered, **errors(400, 401, 404, 408, 409, 413, 415, 422, 429, 500, 503)}


@router.post("/query", responses=_RESPONSES, dependencies=[Depends(json_only)], summary="Ask a question")
@router.post("/v1/query", responses=_RESPONSES, dependencies=[Depends(json_only)], summary="Ask a question")
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
    engine = gateway.readiness.engine()
    gateway.readiness.require_parts()
    return Query(
        namespace=caller.namespace,
        caller=caller.owner,
        model=engine.model,
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
