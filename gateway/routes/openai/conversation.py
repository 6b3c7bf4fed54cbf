"""From a conversation to a query."""

from collections.abc import Sequence
from typing import NamedTuple

from gateway.limits.auth import Caller
from gateway.query.query import Query
from gateway.routes.dependencies import Gateway
from gateway.routes.openai.models import served_model
from gateway.search.follow_ups import EARLIER_QUESTIONS, FollowUps, last_question
from gateway.wire.schemas import AnswerBody
from protocol.errors import InvalidRequest
from protocol.generation import Sampling
from protocol.prompts import ChatMessage


class QuestionFields(NamedTuple):
    """The request's fields of the conversation and of the schema that the answer follows, for errors."""

    messages: str
    schema: str = "json_schema"


def conversation_query(
    body: AnswerBody,
    model_id: str,
    messages: Sequence[ChatMessage],
    fields: QuestionFields,
    sampling: Sampling,
    caller: Caller,
    gateway: Gateway,
    follow_ups: FollowUps | None = None,
) -> Query:
    """The query that answers a conversation.

    It searches with the last user message that has text, and with those before it as ``follow_ups`` says. A
    ``collection`` that the request names must exist and have documents, as for ``/query``. Without one, it uses the
    default collection, or no documents if that is empty. Raises InvalidRequest, UnknownModel or Unavailable.
    """
    settings = gateway.settings
    way = follow_ups or settings.default_follow_ups
    earlier = 0 if way is FollowUps.ALONE else EARLIER_QUESTIONS
    question = last_question(messages, earlier, settings.max_query_chars)
    if question is None:
        raise InvalidRequest("The conversation has no user message with text.", fields.messages)
    search = body.to_search(question.text, fields.messages, caller.tenant, settings, question.context)
    engine = served_model(model_id, gateway)
    gateway.readiness.require_parts()
    return Query(
        namespace=caller.namespace,
        caller=caller.owner,
        model=engine.model,
        search=search,
        messages=tuple(messages),
        question_field=fields.messages,
        schema_field=fields.schema,
        sampling=sampling,
        documents_optional=body.collection is None,
        rewrite_from=max(1, earlier) if way is FollowUps.REWRITTEN and question.follows else 0,
        order=body.document_order or settings.default_document_order,
        reuse=body.reuse or caller.reuse,
        recompute_share=body.recompute_share,
        budget=body.budget,
        context_only=body.only_need_context,
    )
