"""``POST /v1/completions``: a prompt that is a question, answered from documents."""

from typing import Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from gateway.routes.asking import start_choices, streamed, while_connected
from gateway.routes.bodies import json_response
from gateway.routes.dependencies import CallerDep, GatewayDep, QueryTicketDep, json_only
from gateway.routes.json_route import JsonRoute
from gateway.routes.openai.conversation import QuestionFields, conversation_query
from gateway.routes.sse import chunk_frames
from gateway.wire.openai.completions import Completion, CompletionBody, CompletionChunks, completion
from gateway.wire.openapi import errors, event_stream, json_reply
from protocol.prompts import ChatMessage

router = APIRouter(prefix="/v1", tags=["openai"], route_class=JsonRoute)

_completed: dict[str, Any] = json_reply(Completion, "The answer. With `stream`, parts of it and `[DONE]`.")
_completed["content"]["text/event-stream"] = event_stream()


@router.post(
    "/completions",
    responses={200: _completed, **errors(400, 401, 404, 408, 409, 413, 415, 422, 429, 500, 503)},
    dependencies=[Depends(json_only)],
)
async def complete(
    body: CompletionBody, request: Request, caller: CallerDep, gateway: GatewayDep, ticket: QueryTicketDep
) -> Response:
    """Answer a prompt like a chat with one user message."""
    body.refuse_unserved()
    asked = (ChatMessage("user", body.question()),)
    sampling = body.sampling(gateway.settings.default_max_tokens)
    query = conversation_query(body, body.model, asked, QuestionFields("prompt"), sampling, caller, gateway)
    choices = await start_choices(query, body.choices, gateway, ticket)
    if body.stream:
        return await streamed(
            choices, chunk_frames(choices, CompletionChunks(body.choices, body.include_usage)), request, gateway
        )
    return json_response(completion(await while_connected(request, choices, choices.replies())))
