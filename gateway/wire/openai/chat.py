"""OpenAI's chat endpoint: the body of a request, and the answer as one object or as chunks of a stream.

In addition to OpenAI's fields, a completion and the first chunk of a stream have ``citations`` and ``partial``, which
is true if the results of a lost or slow shard of the index are missing. ``rewriting`` is the outcome of a follow-up
that was to be rewritten; null otherwise.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from pydantic import Field

from gateway.wire.openai.choice_stream import ChoiceStream, Tokens, openai_id, usage_of
from gateway.wire.openai.request_fields import (
    ASKS,
    ChatTurn,
    ChoiceFields,
    ConversationFields,
    ModelBody,
    ResponseFormat,
    TopLogprobs,
)
from gateway.wire.reply import Citation, Reply, Rewriting, ScoredToken, Usage
from gateway.wire.schemas import MaxTokens
from protocol.errors import InvalidRequest
from protocol.generation import FinishReason, Sampling
from protocol.prompts import ChatMessage


class ChatBody(ChoiceFields, ModelBody, ConversationFields):
    """OpenAI's chat request, plus our fields of an answer and of a conversation, and vLLM's sampling parameters."""

    question_field, schema_field = "messages", "response_format"
    messages: Annotated[list[ChatTurn], Field(fail_fast=True)] = Field(min_length=1, json_schema_extra=ASKS)
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None

    def conversation(self) -> list[ChatMessage]:
        """The messages of the prompt layout. Raises UnsupportedParameter or InvalidRequest."""
        return [turn.to_protocol(f"messages.{number}") for number, turn in enumerate(self.messages)]

    def sampling(self, default_max_tokens: int) -> Sampling:
        """The sampling of the answer. Raises InvalidRequest for ``top_logprobs`` without ``logprobs``."""
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true.", "top_logprobs")
        return self.to_sampling(
            self.max_completion_tokens or self.max_tokens or default_max_tokens,
            None if self.response_format is None else self.response_format.to_json_schema(),
            (self.top_logprobs or 0) if self.logprobs else None,
        )


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer as a message."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChoiceLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """The log probabilities of a choice's tokens. The end of an answer is a token, too."""

    content: tuple[ScoredToken, ...]
    refusal: None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of a completion."""

    index: int
    message: AssistantMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A complete answer in OpenAI's format."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: Usage
    citations: tuple[Citation, ...]
    partial: bool = False
    rewriting: Rewriting | None = None


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The text that a chunk adds to the message."""

    role: str | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The one choice of a chunk. A choice's last chunk has the ``finish_reason``."""

    index: int
    delta: Delta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk of a streamed answer. With ``include_usage``, only the last chunk has a ``usage`` other than null."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    citations: tuple[Citation, ...] | msgspec.UnsetType = msgspec.UNSET
    partial: bool | msgspec.UnsetType = msgspec.UNSET
    rewriting: Rewriting | msgspec.UnsetType | None = msgspec.UNSET


def chat_completion(replies: Sequence[Reply]) -> ChatCompletion:
    """Convert the replies of choices into OpenAI's format."""
    first = replies[0]
    return ChatCompletion(
        id=openai_id("chatcmpl-", first.query_id),
        created=first.created_at,
        model=first.model,
        choices=tuple(
            Choice(
                index=index,
                message=AssistantMessage(content=reply.output_text),
                logprobs=_logprobs(reply.logprobs),
                finish_reason=reply.finish_reason,
            )
            for index, reply in enumerate(replies)
        ),
        usage=usage_of(replies),
        citations=first.citations,
        partial=first.partial,
        rewriting=first.rewriting,
    )


class ChatChunks(ChoiceStream[ChatChunk]):
    """A chat's chunks. The first one, at the first text, has the citations."""

    def __init__(self, body: ChoiceFields) -> None:
        super().__init__(body)
        self._opened: set[int] = set()

    def _text(self, index: int, text: str, tokens: Tokens) -> list[ChatChunk]:
        return [*self._opening(index), self._chunk(index, Delta(content=text), tokens)]

    def _last(self, index: int, reply: Reply, tokens: Tokens) -> list[ChatChunk]:
        return [*self._opening(index), self._chunk(index, Delta(), tokens, reply.finish_reason)]

    def _opening(self, index: int) -> list[ChatChunk]:
        if index in self._opened:
            return []
        opening = self._chunk(index, Delta(role="assistant", content=""))
        if not self._opened:
            opening = msgspec.structs.replace(
                opening, citations=tuple(self._citations), partial=self._partial, rewriting=self._rewriting
            )
        self._opened.add(index)
        return [opening]

    def _chunk(
        self, index: int, delta: Delta, tokens: Tokens = msgspec.UNSET, finish_reason: FinishReason | None = None
    ) -> ChatChunk:
        return ChatChunk(
            id=openai_id("chatcmpl-", self._query.query_id),
            created=self._query.created_at,
            model=self._query.model,
            choices=(ChunkChoice(index=index, delta=delta, logprobs=_logprobs(tokens), finish_reason=finish_reason),),
            usage=self._no_usage,
        )


def _logprobs(tokens: Tokens) -> ChoiceLogprobs | None:
    return None if tokens is msgspec.UNSET else ChoiceLogprobs(content=tokens)
