"""OpenAI's chat endpoint: the body of a request, and the answer as one object or as chunks of a stream.

In addition to OpenAI's fields, a completion and the first chunk of a stream have ``citations`` and ``partial``, which
is true if the results of a lost or slow shard of the index are missing. ``rewriting`` is what became of a follow-up
that was to be rewritten; null otherwise.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from pydantic import Field

from gateway.wire import events
from gateway.wire.logprobs import ScoredToken
from gateway.wire.openai.body_fields import ChoiceFields, ConversationFields, StreamFields
from gateway.wire.openai.messages import ASKS, ChatTurn
from gateway.wire.openai.parameters import OpenAIBody
from gateway.wire.openai.response_format import ResponseFormat
from gateway.wire.openai.sampling_fields import SamplingFields, TopLogprobs
from gateway.wire.openai.stream_record import StreamRecord
from gateway.wire.reply import Citation, Reply, Usage
from gateway.wire.rewriting import Rewriting
from gateway.wire.schemas import AnswerBody, MaxTokens
from protocol.errors import InvalidRequest
from protocol.generation import FinishReason, Sampling
from protocol.prompts import ChatMessage


class ChatBody(ChoiceFields, StreamFields, OpenAIBody, AnswerBody, ConversationFields, SamplingFields):
    """OpenAI's chat request, plus our fields of an answer and of a conversation, and vLLM's sampling parameters."""

    model: str = Field(min_length=1)
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
        id=_chat_id(first.query_id),
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
        usage=Usage.of_choices([reply.usage for reply in replies]),
        citations=first.citations,
        partial=first.partial,
        rewriting=first.rewriting,
    )


class ChatChunks:
    """Converts the events of ``count`` choices into chunks. The first one, at the first text, has the citations."""

    def __init__(self, count: int, include_usage: bool) -> None:
        self._record = StreamRecord(count, include_usage)
        self._opened: set[int] = set()

    def of(self, index: int, event: events.Event) -> list[ChatChunk]:
        """The chunks of a choice's next event."""
        self._record.note(index, event)
        match event:
            case events.OutputTextDelta():
                text = self._chunk(index, Delta(content=event.delta), logprobs=event.logprobs)
                return [*self._opening(index), text]
            case events.QueryCompleted():
                return [*self._opening(index), *self._closing(index, event)]
        return []

    def _opening(self, index: int) -> list[ChatChunk]:
        if index in self._opened:
            return []
        opening = self._chunk(index, Delta(role="assistant", content=""))
        record = self._record
        if not self._opened:
            cited = tuple(record.citations)
            opening = msgspec.structs.replace(
                opening, citations=cited, partial=record.partial, rewriting=record.rewriting
            )
        self._opened.add(index)
        return [opening]

    def _closing(self, index: int, completed: events.QueryCompleted) -> list[ChatChunk]:
        left = self._record.left(index, completed)
        return self._record.ending(self._chunk(index, Delta(), completed.response.finish_reason, left))

    def _chunk(
        self,
        index: int,
        delta: Delta,
        finish_reason: FinishReason | None = None,
        logprobs: tuple[ScoredToken, ...] | msgspec.UnsetType = msgspec.UNSET,
    ) -> ChatChunk:
        created = self._record.created
        return ChatChunk(
            id=_chat_id(created.query_id),
            created=created.created_at,
            model=created.model,
            choices=(ChunkChoice(index=index, delta=delta, logprobs=_logprobs(logprobs), finish_reason=finish_reason),),
            usage=self._record.no_usage,
        )


def _logprobs(tokens: tuple[ScoredToken, ...] | msgspec.UnsetType) -> ChoiceLogprobs | None:
    return None if tokens is msgspec.UNSET else ChoiceLogprobs(content=tokens)


def _chat_id(query_id: str) -> str:
    return f"chatcmpl-{query_id.removeprefix('query_')}"
