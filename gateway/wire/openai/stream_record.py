"""What the later objects of a stream need of the earlier events."""

from collections import Counter
from typing import TypeVar

import msgspec

from gateway.wire import events
from gateway.wire.logprobs import ScoredToken
from gateway.wire.reply import Citation, Usage
from gateway.wire.rewriting import Rewriting

T = TypeVar("T", bound=msgspec.Struct)


class StreamRecord:
    """Collects the citations of the first of ``count`` choices, and counts each choice's tokens with log probabilities.

    All choices rest on the same documents. With ``include_usage``, the stream ends with an object that has their usage.
    """

    def __init__(self, count: int, include_usage: bool) -> None:
        self._count = count
        self._include_usage = include_usage
        self.citations: list[Citation] = []
        self.partial = False
        self.rewriting: Rewriting | None = None
        self._created: events.QueryCreated | None = None
        self._scored = Counter[int]()
        self._usages: dict[int, Usage] = {}

    @property
    def created(self) -> events.QueryCreated:
        """The first event of the first choice."""
        assert self._created is not None, "query.created comes first"
        return self._created

    def note(self, index: int, event: events.Event) -> None:
        """Record a choice's next event."""
        match event:
            case events.OutputTextDelta(logprobs=tuple() as tokens):
                self._scored[index] += len(tokens)
            case events.QueryCompleted():
                self._usages[index] = event.usage
            case _ if index == 0:
                self._note_first(event)

    def left(self, index: int, completed: events.QueryCompleted) -> tuple[ScoredToken, ...] | msgspec.UnsetType:
        """A choice's last tokens, which left with no delta, since they have no text of their own."""
        logprobs = completed.response.logprobs
        return msgspec.UNSET if logprobs is msgspec.UNSET else logprobs[self._scored[index] :] or msgspec.UNSET

    @property
    def no_usage(self) -> msgspec.UnsetType | None:
        """The usage field of the objects that do not have it."""
        return None if self._include_usage else msgspec.UNSET

    def ending(self, last: T) -> list[T]:
        """A choice's last object and, if all choices are complete, that of their usage."""
        if not self._include_usage or len(self._usages) < self._count:
            return [last]
        usage = Usage.of_choices([self._usages[index] for index in range(self._count)])
        return [last, msgspec.structs.replace(last, choices=(), usage=usage)]

    def _note_first(self, event: events.Event) -> None:
        match event:
            case events.QueryCreated():
                self._created = event
            case events.RetrievalCompleted():
                self.partial = event.partial
                self.rewriting = event.rewriting
            case events.AnnotationAdded():
                self.citations.append(event.annotation)
