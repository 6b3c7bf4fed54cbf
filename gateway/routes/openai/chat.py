"""``POST /v1/chat/completions``: a conversation, answered from documents."""

from typing import Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from gateway.off_loop import ITEM, off_loop
from gateway.routes.asking import start_choices, streamed, while_connected
from gateway.routes.bodies import json_response
from gateway.routes.dependencies import CallerDep, GatewayDep, QueryTicketDep, json_only
from gateway.routes.json_route import JsonRoute
from gateway.routes.openai.conversation import QuestionFields, conversation_query
from gateway.routes.sse import chunk_frames
from gateway.wire.openai.chat import ChatBody, ChatChunks, ChatCompletion, chat_completion
from gateway.wire.openapi import errors, event_stream, json_reply

router = APIRouter(prefix="/v1", tags=["openai"], route_class=JsonRoute)

_chatted: dict[str, Any] = json_reply(ChatCompletion, "The answer. With `stream`, chunks and `[DONE]`.")
_chatted["content"]["text/event-stream"] = event_stream()


@router.post(
    "/chat/completions",
    responses={200: _chatted, **errors(400, 401, 404, 408, 409, 413, 415, 422, 429, 500, 503)},
    dependencies=[Depends(json_only)],
)
async def chat(
    body: ChatBody, request: Request, caller: CallerDep, gateway: GatewayDep, ticket: QueryTicketDep
) -> Response:
    """Answer the last user message of a conversation from the documents of a collection."""
    body.refuse_unserved()
    messages = await off_loop(ITEM * len(body.messages), body.conversation)
    sampling = body.sampling(gateway.settings.default_max_tokens)
    fields = QuestionFields("messages", schema="response_format")
    query = conversation_query(body, body.model, messages, fields, sampling, caller, gateway, body.follow_ups)
    choices = await start_choices(query, body.choices, gateway, ticket)
    if body.stream:
        return await streamed(
            choices, chunk_frames(choices, ChatChunks(body.choices, body.include_usage)), request, gateway
        )
    return json_response(chat_completion(await while_connected(request, choices, choices.replies())))
