"""The streams of several choices, which chats and completions have in common."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Generic, TypeAlias, TypeVar

import msgspec

from gateway.wire import events
from gateway.wire.openai.request_fields import ChoiceFields
from gateway.wire.reply import Citation, Reply, Rewriting, ScoredToken, Usage

T = TypeVar("T", bound=msgspec.Struct)

Tokens: TypeAlias = tuple[ScoredToken, ...] | msgspec.UnsetType
"""An answer's tokens with their log probabilities, if they were asked for."""


def usage_of(replies: Sequence[Reply]) -> Usage:
    """The usage of choices, the first one's reply first. Their common prompt counts once."""
    first, generated = replies[0].usage, sum(reply.usage.completion_tokens for reply in replies)
    return Usage(first.prompt_tokens, generated, first.prompt_tokens + generated, first.prompt_tokens_details)


def openai_id(kind: str, query_id: str) -> str:
    """The id of one of OpenAI's objects that is made of a query."""
    return kind + query_id.removeprefix("query_")


class ChoiceStream(ABC, Generic[T]):
    """Converts the events of a request's choices into the objects of a stream.

    All choices rest on the same documents, so the citations are those of the first one. With ``include_usage``, the
    stream ends with an object that has the usage.
    """

    def __init__(self, body: ChoiceFields) -> None:
        self._count = body.choices
        self._include_usage = body.include_usage
        self._citations: list[Citation] = []
        self._partial = False
        self._rewriting: Rewriting | None = None
        self._created: events.QueryCreated | None = None
        # Of each choice, the tokens with a log probability that have left.
        self._scored = Counter[int]()
        self._replies: dict[int, Reply] = {}

    def of(self, index: int, event: events.Event) -> list[T]:
        """The objects of a choice's next event."""
        match event:
            case events.QueryCreated() if index == 0:
                self._created = event
            case events.RetrievalCompleted() if index == 0:
                self._partial, self._rewriting = event.partial, event.rewriting
            case events.AnnotationAdded() if index == 0:
                self._citations.append(event.annotation)
            case events.OutputTextDelta():
                self._scored[index] += 0 if event.logprobs is msgspec.UNSET else len(event.logprobs)
                return self._text(index, event.delta, event.logprobs)
            case events.QueryCompleted():
                return self._ending(index, event.response)
        return []

    def _ending(self, index: int, reply: Reply) -> list[T]:
        """A choice's last objects and, if all choices are complete, that of their usage."""
        self._replies[index] = reply
        # The last tokens leave with no delta if they have no text.
        left = msgspec.UNSET if reply.logprobs is msgspec.UNSET else reply.logprobs[self._scored[index] :]
        last = self._last(index, reply, left or msgspec.UNSET)
        if self._include_usage and len(self._replies) == self._count:
            usage = usage_of([self._replies[number] for number in range(self._count)])
            last.append(msgspec.structs.replace(last[-1], choices=(), usage=usage))
        return last

    @abstractmethod
    def _text(self, index: int, text: str, tokens: Tokens) -> list[T]:
        """The objects of new text of a choice."""

    @abstractmethod
    def _last(self, index: int, reply: Reply, tokens: Tokens) -> list[T]:
        """The objects that end a choice, with its ``tokens`` that have not left yet."""

    @property
    def _query(self) -> events.QueryCreated:
        """The first event of the first choice."""
        assert self._created is not None, "query.created comes first"
        return self._created

    @property
    def _no_usage(self) -> msgspec.UnsetType | None:
        """The usage field of the objects that do not have it."""
        return None if self._include_usage else msgspec.UNSET
