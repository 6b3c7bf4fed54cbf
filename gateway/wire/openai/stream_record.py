"""What the later objects of a stream need of a query's earlier events."""

import msgspec

from gateway.wire import events
from gateway.wire.logprobs import ScoredToken
from gateway.wire.reply import Citation
from gateway.wire.rewriting import Rewriting


class StreamRecord:
    """Collects a query's citations until the first text, and counts the tokens that leave with log probabilities."""

    def __init__(self) -> None:
        self.citations: list[Citation] = []
        self.partial = False
        self.rewriting: Rewriting | None = None
        self._created: events.QueryCreated | None = None
        self._scored = 0

    @property
    def created(self) -> events.QueryCreated:
        """The query's first event."""
        assert self._created is not None, "query.created comes first"
        return self._created

    def note(self, event: events.Event) -> None:
        """Record the next event."""
        match event:
            case events.QueryCreated():
                self._created = event
            case events.RetrievalCompleted():
                self.partial = event.partial
                self.rewriting = event.rewriting
            case events.AnnotationAdded():
                self.citations.append(event.annotation)
            case events.OutputTextDelta(logprobs=tuple() as tokens):
                self._scored += len(tokens)

    def left(self, completed: events.QueryCompleted) -> tuple[ScoredToken, ...] | msgspec.UnsetType:
        """The last tokens, which left with no delta, since they have no text of their own."""
        logprobs = completed.response.logprobs
        return msgspec.UNSET if logprobs is msgspec.UNSET else logprobs[self._scored :] or msgspec.UNSET
