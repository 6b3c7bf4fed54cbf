"""OpenAI's chat and models endpoints over the query pipeline.

A chat searches with its last user message that has text, in the context of those before it. A ``collection`` that it
names must exist and have documents, as for ``/query``. Without one, the chat uses the default collection, or no
documents if that is empty.
"""

from typing import Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from gateway.limits.auth import Caller
from gateway.query.last_question import last_question
from gateway.query.query import Query
from gateway.routes.dependencies import CallerDep, Gateway, GatewayDep, QueryTicketDep, json_only
from gateway.routes.disconnect import while_connected
from gateway.routes.responses import json_response
from gateway.routes.sse import RunResponse, chat_frames
from gateway.wire.chat import ChatCompletion, Model, ModelList, chat_completion
from gateway.wire.openapi import errors, event_stream, json_reply
from gateway.wire.schemas import ChatBody
from protocol.errors import InvalidRequest, UnknownModel
from protocol.generation import EngineInfo, Sampling

router = APIRouter(prefix="/v1", tags=["openai"])

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
    run = gateway.runs.start(_query(body, caller, gateway))
    ticket.follow(run)
    if body.stream:
        await while_connected(request, run, run.started())
        include_usage = body.stream_options is not None and body.stream_options.include_usage
        return RunResponse(run, chat_frames(run, include_usage), gateway.settings)
    return json_response(chat_completion(await while_connected(request, run, run.reply())))


@router.get("/models", responses={200: json_reply(ModelList, "The served models."), **errors(401, 429, 500, 503)})
async def list_models(_caller: CallerDep, gateway: GatewayDep) -> Response:
    """List the served model."""
    return json_response(ModelList(data=(_model(gateway.readiness.engine()),)))


@router.get(
    "/models/{model_id:path}", responses={200: json_reply(Model, "The model."), **errors(401, 404, 422, 429, 500, 503)}
)
async def get_model(model_id: str, _caller: CallerDep, gateway: GatewayDep) -> Response:
    """Get the served model."""
    return json_response(_model(_served(model_id, gateway)))


def _query(body: ChatBody, caller: Caller, gateway: Gateway) -> Query:
    settings = gateway.settings
    messages = tuple(turn.to_protocol() for turn in body.messages)
    question = last_question(messages, settings.context_questions, settings.max_query_chars)
    if question is None:
        raise InvalidRequest("The conversation has no user message with text.", "messages")
    search = body.to_search(question.text, "messages", caller.tenant, settings, question.context)
    engine = _served(body.model, gateway)
    gateway.readiness.require_parts()
    return Query(
        namespace=caller.namespace,
        model=engine.model,
        search=search,
        messages=messages,
        question_field="messages",
        sampling=_sampling(body, settings.default_max_tokens),
        documents_optional=body.collection is None,
        order=body.document_order or settings.default_document_order,
        reuse=body.reuse or caller.reuse,
        recompute_share=body.recompute_share,
    )


def _sampling(body: ChatBody, default_max_tokens: int) -> Sampling:
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return Sampling(
        max_tokens=body.max_completion_tokens or body.max_tokens or default_max_tokens,
        temperature=body.temperature or 0.0,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=body.seed,
        stop=stop,
    )


def _served(model_id: str, gateway: Gateway) -> EngineInfo:
    engine = gateway.readiness.engine()
    if model_id != engine.model:
        raise UnknownModel(f"The model {model_id!r} is not served; use {engine.model!r}.", "model")
    return engine


def _model(engine: EngineInfo) -> Model:
    return Model(id=engine.model, created=0, max_model_len=engine.max_model_len)
