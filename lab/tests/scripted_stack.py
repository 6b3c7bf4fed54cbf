"""A stack that answers from a script, in the very messages of the gateway."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from gateway.wire.events import OutputTextDelta, QueryCompleted, QueryIncomplete
from gateway.wire.reply import (
    Citation,
    CitedPassage,
    PromptTokensDetails,
    Reply,
    SearchResult,
    Timings,
    Usage,
)

Event = dict[str, Any]
TIMINGS = Timings(1.0, 2.0, (2.0,), 2.0, None, 0.0, 3.0, 6.0, 9.0, 0)


def reply(
    text: str, found: Sequence[str] = (), dropped: int = 0, cached: int = 0, composed: int = 0, **other: Any
) -> Reply:
    """A reply on documents, of which the last ``dropped`` were not in the prompt, and the others are cited.

    Its prompt has 100 tokens.
    """
    results = tuple(
        SearchResult(n, doc, doc, f"{doc}#{n}", 1.0, 1.0, None, {}, None, None, None, f"/{doc}/{n}", f"/{doc}")
        for n, doc in enumerate(found)
    )
    given = results[: len(results) - dropped]
    return Reply(
        query_id="q",
        created_at=0,
        model="scripted",
        output_text=text,
        citations=tuple(Citation(one.document_id, one.filename, one.index, one.chunk_id) for one in given),
        results=results,
        dropped_documents=dropped,
        dropped_chunk_ids=(),
        usage=Usage(100, 5, 105, PromptTokensDetails(cached, composed, 0)),
        timings=TIMINGS,
        reuse="composed" if composed else "exact" if cached else "none",
        **{
            "finish_reason": "stop",
            "fallback": None,
            "cited": tuple(CitedPassage(one.index, one.document_id, one.chunk_id, 1.0, ()) for one in given),
        }
        | other,
    )


def stream(answer: Reply) -> Iterator[Event]:
    """The events of an answer."""
    if answer.output_text:
        yield _plain(OutputTextDelta(sequence_number=0, query_id="q", delta=answer.output_text))
    yield _plain(
        QueryCompleted(sequence_number=1, query_id="q", response=answer, usage=answer.usage, timings=answer.timings)
    )


def completed(response: Event) -> Event:
    """The last event of an answer, with any reply."""
    return {"type": "query.completed", "response": response}


def timed_out() -> Event:
    """The last event of a query whose time was up."""
    return _plain(QueryIncomplete(sequence_number=9, query_id="q", reason="timeout"))


def _plain(message: msgspec.Struct) -> Event:
    return msgspec.json.decode(msgspec.json.encode(message))


class ScriptedStack:
    """Answers each query as ``script`` does, which gets its body. Notes the bodies, and how many run at most."""

    url = "http://stack"

    def __init__(self, script: Callable[[Event], Iterator[Event]]) -> None:
        self._script = script
        self._lock = threading.Lock()
        self._running = 0
        self.most_running = 0
        self.bodies: list[Event] = []

    def readiness(self) -> None:
        """It is always ready."""

    def query(self, body: Event) -> Iterator[Event]:
        with self._lock:
            self.bodies.append(body)
            self._running += 1
            self.most_running = max(self.most_running, self._running)
        try:
            yield from self._script(body)
        finally:
            with self._lock:
                self._running -= 1
