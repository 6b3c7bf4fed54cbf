"""Answers in the format of OpenAI's chat endpoint: one object, or chunks of a stream.

In addition to OpenAI's fields, a completion and the first chunk of a stream have ``citations`` and ``partial``, which
is true if the results of a lost or slow shard of the index are missing. ``rewriting`` is what became of a follow-up
that was to be rewritten; null otherwise.
"""

from typing import Literal

import msgspec

from gateway.wire import events
from gateway.wire.logprobs import ScoredToken
from gateway.wire.openai.stream_record import StreamRecord
from gateway.wire.reply import Citation, Reply, Usage
from gateway.wire.rewriting import Rewriting
from protocol.generation import FinishReason


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
    """The one choice of a completion."""

    index: int = 0
    message: AssistantMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A complete answer in OpenAI's format."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: tuple[Choice]
    usage: Usage
    citations: tuple[Citation, ...]
    partial: bool = False
    rewriting: Rewriting | None = None


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The text that a chunk adds to the message."""

    role: str | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The one choice of a chunk. The last chunk has the ``finish_reason``."""

    index: int = 0
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


def chat_completion(reply: Reply) -> ChatCompletion:
    """Convert a reply into OpenAI's format."""
    message = AssistantMessage(content=reply.output_text)
    return ChatCompletion(
        id=_chat_id(reply.query_id),
        created=reply.created_at,
        model=reply.model,
        choices=(Choice(message=message, logprobs=_logprobs(reply.logprobs), finish_reason=reply.finish_reason),),
        usage=reply.usage,
        citations=reply.citations,
        partial=reply.partial,
        rewriting=reply.rewriting,
    )


class ChatChunks:
    """Converts a query's events into chunks. The first one, at the first text, has the citations."""

    def __init__(self, include_usage: bool) -> None:
        self._include_usage = include_usage
        self._record = StreamRecord()
        self._opened = False

    def of(self, event: events.Event) -> list[ChatChunk]:
        """The chunks of the next event."""
        self._record.note(event)
        match event:
            case events.OutputTextDelta():
                return [*self._opening(), self._chunk(Delta(content=event.delta), logprobs=event.logprobs)]
            case events.QueryCompleted():
                return [*self._opening(), *self._closing(event)]
        return []

    def _opening(self) -> list[ChatChunk]:
        if self._opened:
            return []
        self._opened = True
        first = self._chunk(Delta(role="assistant", content=""))
        citations = tuple(self._record.citations)
        record = self._record
        return [msgspec.structs.replace(first, citations=citations, partial=record.partial, rewriting=record.rewriting)]

    def _closing(self, completed: events.QueryCompleted) -> list[ChatChunk]:
        last = self._chunk(Delta(), completed.response.finish_reason, self._record.left(completed))
        if not self._include_usage:
            return [last]
        return [last, msgspec.structs.replace(last, choices=(), usage=completed.usage)]

    def _chunk(
        self,
        delta: Delta,
        finish_reason: FinishReason | None = None,
        logprobs: tuple[ScoredToken, ...] | msgspec.UnsetType = msgspec.UNSET,
    ) -> ChatChunk:
        created = self._record.created
        return ChatChunk(
            id=_chat_id(created.query_id),
            created=created.created_at,
            model=created.model,
            choices=(ChunkChoice(delta=delta, logprobs=_logprobs(logprobs), finish_reason=finish_reason),),
            usage=None if self._include_usage else msgspec.UNSET,
        )


def _logprobs(tokens: tuple[ScoredToken, ...] | msgspec.UnsetType) -> ChoiceLogprobs | None:
    return None if tokens is msgspec.UNSET else ChoiceLogprobs(content=tokens)


def _chat_id(query_id: str) -> str:
    return f"chatcmpl-{query_id.removeprefix('query_')}"
