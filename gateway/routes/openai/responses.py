"""``POST /v1/responses``: OpenAI's responses in their plain form, without tools and without state."""

from typing import Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from gateway.off_loop import ITEM, off_loop
from gateway.routes.asking import start_query, streamed, while_connected
from gateway.routes.bodies import json_response
from gateway.routes.dependencies import CallerDep, GatewayDep, QueryTicketDep, json_only
from gateway.routes.json_route import JsonRoute
from gateway.routes.openai.conversation import QuestionFields, conversation_query
from gateway.routes.sse import response_frames
from gateway.wire.openai.response_body import ResponseBody
from gateway.wire.openai.response_events import RESPONSE_EVENTS, ResponseEvents
from gateway.wire.openai.response_object import ResponseObject, ended, response_in_progress
from gateway.wire.openapi import errors, event_stream, json_reply

router = APIRouter(prefix="/v1", tags=["openai"], route_class=JsonRoute)

_FIELDS = QuestionFields("input", schema="text.format")
_responded: dict[str, Any] = json_reply(ResponseObject, "The response. With `stream`, OpenAI's events of one.")
_responded["content"]["text/event-stream"] = event_stream(*RESPONSE_EVENTS)


@router.post(
    "/responses",
    responses={200: _responded, **errors(400, 401, 404, 408, 409, 413, 415, 422, 429, 500, 503)},
    dependencies=[Depends(json_only)],
)
async def respond(
    body: ResponseBody, request: Request, caller: CallerDep, gateway: GatewayDep, ticket: QueryTicketDep
) -> Response:
    """Answer an input like a chat."""
    body.refuse_unserved()
    sampling = body.sampling(gateway.settings.default_max_tokens)
    items = 1 if isinstance(body.input, str) else len(body.input)
    messages = await off_loop(ITEM * items, body.messages)
    query = conversation_query(body, body.model, messages, _FIELDS, sampling, caller, gateway, body.follow_ups)
    run = await start_query(query, gateway, ticket)
    accepted = sampling, query.query_id, query.model, int(run.transcript.arrived_at)
    if body.stream:
        return await streamed(run, response_frames(run, ResponseEvents(body, *accepted)), request, gateway)
    reply = await while_connected(request, run, run.reply())
    return json_response(ended(response_in_progress(body, *accepted), reply))
