"""OpenAI's endpoints: conversations, prompts and responses are answered from documents, and texts embedded."""

from collections.abc import Sequence
from typing import Literal

import msgspec
from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from gateway.limits.auth import Caller
from gateway.query.follow_ups import EARLIER_QUESTIONS, FollowUps, last_question
from gateway.query.query import Query
from gateway.query.served_model import ServedModel, served_model, served_models
from gateway.routes.asking import chunk_frames, event_frames, start_choices, start_query, streamed, while_connected
from gateway.routes.bodies import JsonRoute, json_response
from gateway.routes.dependencies import CallerDep, Gateway, GatewayDep, QueryTicketDep, any_text, json_only
from gateway.tasks import ITEM, Deadline, off_loop
from gateway.wire.openai.chat import ChatBody, ChatChunks, ChatCompletion, chat_completion
from gateway.wire.openai.completions import Completion, CompletionBody, CompletionChunks, completion
from gateway.wire.openai.embeddings import EmbeddingList, EmbeddingsBody, encoded_embeddings
from gateway.wire.openai.request_fields import ModelBody
from gateway.wire.openai.response_events import RESPONSE_EVENTS, ResponseEvents
from gateway.wire.openai.responses import ResponseBody, ResponseObject, ended, response_in_progress
from gateway.wire.openapi import answer, errors, replies
from protocol.errors import DeadlineExceeded, InvalidRequest
from protocol.generation import EngineInfo
from protocol.prompts import ChatMessage

router = APIRouter(prefix="/v1", tags=["openai"], route_class=JsonRoute)
_ERRORS = errors(400, 401, 404, 408, 409, 413, 415, 422, 429, 500, 503)


def conversation_query(
    body: ModelBody,
    messages: Sequence[ChatMessage],
    caller: Caller,
    gateway: Gateway,
    follow_ups: FollowUps | None = None,
) -> Query:
    """The query that answers the conversation of a request.

    It searches with the last user message that has text, and with those before it as ``follow_ups`` says. A
    ``collection`` that the request names must exist and have documents, as for ``/query``. Without one, it uses the
    default collection, or no documents if that is empty. Raises InvalidRequest, UnknownModel or Unavailable.
    """
    settings, field = gateway.settings, body.question_field
    sampling = body.sampling(settings.default_max_tokens)
    way = follow_ups or settings.default_follow_ups
    earlier = 0 if way is FollowUps.ALONE else EARLIER_QUESTIONS
    question = last_question(messages, earlier, settings.max_query_chars)
    if question is None:
        raise InvalidRequest("The conversation has no user message with text.", field)
    search = body.to_search(question.text, field, caller.tenant, settings, question.context)
    model = served_model(gateway.readiness.engine(), body.model)
    gateway.readiness.require_parts()
    return Query(
        namespace=model.namespace(caller.namespace),
        caller=caller.owner,
        model=model.name,
        search=search,
        messages=tuple(messages),
        question_field=field,
        schema_field=body.schema_field,
        sampling=sampling,
        documents_optional=body.collection is None,
        rewrite_from=max(1, earlier) if way is FollowUps.REWRITTEN and question.follows else 0,
        order=body.document_order or settings.default_document_order,
        reuse=body.reuse or caller.reuse,
        recompute_share=body.recompute_share,
        budget=body.budget,
        context_only=body.only_need_context,
    )


@router.post(
    "/chat/completions",
    responses={200: answer(ChatCompletion, "The answer. With `stream`, chunks and `[DONE]`."), **_ERRORS},
    dependencies=[Depends(json_only)],
)
async def chat(
    body: ChatBody, request: Request, caller: CallerDep, gateway: GatewayDep, ticket: QueryTicketDep
) -> Response:
    """Answer the last user message of a conversation from the documents of a collection."""
    body.refuse_unserved()
    messages = await off_loop(ITEM * len(body.messages), body.conversation)
    query = conversation_query(body, messages, caller, gateway, body.follow_ups)
    choices = await start_choices(query, body.choices, gateway, ticket)
    if body.stream:
        return await streamed(choices, chunk_frames(choices, ChatChunks(body)), request, gateway)
    return json_response(chat_completion(await while_connected(request, choices, choices.replies())))


@router.post(
    "/completions",
    responses={200: answer(Completion, "The answer. With `stream`, parts of it and `[DONE]`."), **_ERRORS},
    dependencies=[Depends(json_only)],
)
async def complete(
    body: CompletionBody, request: Request, caller: CallerDep, gateway: GatewayDep, ticket: QueryTicketDep
) -> Response:
    """Answer a prompt like a chat with one user message."""
    body.refuse_unserved()
    asked = (ChatMessage("user", body.question()),)
    query = conversation_query(body, asked, caller, gateway)
    choices = await start_choices(query, body.choices, gateway, ticket)
    if body.stream:
        return await streamed(choices, chunk_frames(choices, CompletionChunks(body)), request, gateway)
    return json_response(completion(await while_connected(request, choices, choices.replies())))


@router.post(
    "/responses",
    responses={
        200: answer(ResponseObject, "The response. With `stream`, OpenAI's events of one.", *RESPONSE_EVENTS),
        **_ERRORS,
    },
    dependencies=[Depends(json_only)],
)
async def respond(
    body: ResponseBody, request: Request, caller: CallerDep, gateway: GatewayDep, ticket: QueryTicketDep
) -> Response:
    """Answer an input like a chat."""
    body.refuse_unserved()
    items = 1 if isinstance(body.input, str) else len(body.input)
    messages = await off_loop(ITEM * items, body.messages)
    query = conversation_query(body, messages, caller, gateway, body.follow_ups)
    run = await start_query(query, gateway, ticket)
    response = response_in_progress(body, query.sampling, query.query_id, query.model, int(run.transcript.arrived_at))
    if body.stream:
        return await streamed(run, event_frames(run, ResponseEvents(response, query.query_id)), request, gateway)
    return json_response(ended(response, await while_connected(request, run, run.reply())))


@router.post(
    "/embeddings",
    responses=replies(EmbeddingList, "The vectors.", 400, 401, 404, 408, 413, 415, 422, 429, 500, 503),
    dependencies=[Depends(json_only)],
)
async def embed(body: EmbeddingsBody, _caller: CallerDep, gateway: GatewayDep, ticket: QueryTicketDep) -> Response:
    """Embed texts like documents or queries."""
    body.refuse_unserved()
    deadline = Deadline(gateway.settings.query_timeout_s, "The texts were not embedded")
    request = body.to_protocol()
    try:
        found = await deadline.wait(gateway.parts.retriever.embed(request))
    except DeadlineExceeded:
        # The embedder worked all the time, and only it could have counted tokens. A word has at least one.
        ticket.used(sum(len(text.split()) for text in request.texts))
        raise
    ticket.used(found.tokens)
    size = sum(map(len, found.vectors))
    content = await off_loop(size, lambda: encoded_embeddings(body, found))
    return Response(content, media_type="application/json")


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A served model in OpenAI's format. ``max_model_len`` bounds prompt and answer together, in tokens.

    ``parent`` is the model that an adapter changes.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "ragtree"
    max_model_len: int
    parent: str | None = None


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The list of served models: the engine's own, and its adapters."""

    object: Literal["list"] = "list"
    data: tuple[Model, ...]


@router.get("/models", responses=replies(ModelList, "The served models.", 401, 429, 500, 503))
async def list_models(_caller: CallerDep, gateway: GatewayDep) -> Response:
    """List the served models."""
    engine = gateway.readiness.engine()
    return json_response(ModelList(data=tuple(_model(engine, model) for model in served_models(engine))))


@router.get("/models/" + any_text("model_id"), responses=replies(Model, "The model.", 401, 404, 422, 429, 500, 503))
async def get_model(model_id: str, _caller: CallerDep, gateway: GatewayDep) -> Response:
    """Get a served model."""
    engine = gateway.readiness.engine()
    return json_response(_model(engine, served_model(engine, model_id)))


def _model(engine: EngineInfo, model: ServedModel) -> Model:
    parent = engine.model if model.digest else None
    return Model(id=model.name, created=0, max_model_len=engine.max_model_len, parent=parent)
