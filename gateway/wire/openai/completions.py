"""Answers in the format of OpenAI's completions endpoint, which its streams have, too.

In addition to OpenAI's fields, a completion and the first object of a stream have ``citations`` and ``partial``, as in
a chat.
"""

from typing import Literal

import msgspec

from gateway.wire import events
from gateway.wire.logprobs import ScoredToken
from gateway.wire.openai.stream_record import StreamRecord
from gateway.wire.reply import Citation, Reply, Usage
from protocol.generation import FinishReason


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """The log probabilities of a choice's tokens. ``text_offset`` is where each begins in the answer, in characters."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The one choice of a completion. In a stream, only the last one has the ``finish_reason``."""

    index: int = 0
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, or a part of one in a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    citations: tuple[Citation, ...] | msgspec.UnsetType = msgspec.UNSET
    partial: bool | msgspec.UnsetType = msgspec.UNSET


def completion(reply: Reply) -> Completion:
    """Convert a reply into OpenAI's format."""
    choice = CompletionChoice(
        text=reply.output_text, logprobs=_logprobs(reply.logprobs, 0), finish_reason=reply.finish_reason
    )
    return Completion(
        id=_completion_id(reply.query_id),
        created=reply.created_at,
        model=reply.model,
        choices=(choice,),
        usage=reply.usage,
        citations=reply.citations,
        partial=reply.partial,
    )


class CompletionChunks:
    """Converts a query's events into the objects of a stream."""

    def __init__(self, include_usage: bool) -> None:
        self._include_usage = include_usage
        self._record = StreamRecord()
        self._opened = False
        # Of the next token with a log probability.
        self._offset = 0

    def of(self, event: events.Event) -> list[Completion]:
        """The objects of the next event."""
        self._record.note(event)
        match event:
            case events.OutputTextDelta():
                return [self._part(event.delta, event.logprobs)]
            case events.QueryCompleted():
                last = self._part("", self._record.left(event), event.response.finish_reason)
                return [last, *([msgspec.structs.replace(last, choices=(), usage=event.usage)] * self._include_usage)]
        return []

    def _part(
        self,
        text: str,
        tokens: tuple[ScoredToken, ...] | msgspec.UnsetType,
        finish_reason: FinishReason | None = None,
    ) -> Completion:
        created, opened, self._opened = self._record.created, self._opened, True
        logprobs = _logprobs(tokens, self._offset)
        self._offset += 0 if tokens is msgspec.UNSET else sum(len(token.token) for token in tokens)
        return Completion(
            id=_completion_id(created.query_id),
            created=created.created_at,
            model=created.model,
            choices=(CompletionChoice(text=text, logprobs=logprobs, finish_reason=finish_reason),),
            usage=None if self._include_usage else msgspec.UNSET,
            citations=msgspec.UNSET if opened else tuple(self._record.citations),
            partial=msgspec.UNSET if opened else self._record.partial,
        )


def _logprobs(tokens: tuple[ScoredToken, ...] | msgspec.UnsetType, offset: int) -> CompletionLogprobs | None:
    if tokens is msgspec.UNSET:
        return None
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.token)
    return CompletionLogprobs(
        [token.token for token in tokens],
        [token.logprob for token in tokens],
        [{likely.token: likely.logprob for likely in token.top_logprobs} for token in tokens],
        offsets,
    )


def _completion_id(query_id: str) -> str:
    return f"cmpl-{query_id.removeprefix('query_')}"
