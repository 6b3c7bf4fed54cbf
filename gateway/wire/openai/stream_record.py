"""What the later objects of a stream need of the earlier events."""

from collections import Counter

import msgspec

from gateway.wire import events
from gateway.wire.logprobs import ScoredToken
from gateway.wire.openai.usage import usage_of_choices
from gateway.wire.reply import Citation, Usage
from gateway.wire.rewriting import Rewriting


class StreamRecord:
    """Collects the citations of the first of ``count`` choices, and counts each choice's tokens with log probabilities.

    All choices rest on the same documents.
    """

    def __init__(self, count: int) -> None:
        self._count = count
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

    def usage(self) -> Usage | None:
        """The usage of all choices; None until the last one is complete."""
        if len(self._usages) < self._count:
            return None
        return usage_of_choices([self._usages[index] for index in range(self._count)])

    def _note_first(self, event: events.Event) -> None:
        match event:
            case events.QueryCreated():
                self._created = event
            case events.RetrievalCompleted():
                self.partial = event.partial
                self.rewriting = event.rewriting
            case events.AnnotationAdded():
                self.citations.append(event.annotation)
