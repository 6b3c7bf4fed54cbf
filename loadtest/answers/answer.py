"""One streamed answer as its client sees it: when its parts came, and whether it ended as it should."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec

from loadtest.answers.sse import ServerSentEvent, SseDecoder

TERMINAL = frozenset({"query.completed", "query.incomplete", "query.failed"})


class Latency(StrEnum):
    """What is measured of an answer, each from when its request was due but the gaps between pieces of text."""

    TTFR = "TTFR"
    """Until the documents are final (``retrieval.completed``)."""
    TTFT = "TTFT"
    """Until the first text that is not empty."""
    ITL = "ITL"
    """Between two pieces of text."""
    E2E = "E2E"
    """Until the terminal event."""


class Answer:
    """Reads one stream. ``measured`` hears of each latency in seconds, as soon as it is known.

    E2E is known when the stream is over, for a second terminal event makes the answer a failure.
    """

    def __init__(self, due: float, measured: Callable[[Latency, float], None]) -> None:
        self._due = due
        self._measured = measured
        self._decoder = SseDecoder()
        self._last_text = due
        self._terminals: list[tuple[dict[str, Any], float]] = []
        self._breach: str | None = None
        self.query_id: str | None = None
        self.ttfr: float | None = None
        self.ttft: float | None = None
        self.itl: list[float] = []
        self.sources: list[str] = []
        self.cited: list[str] = []
        self._text: list[str] = []

    @property
    def text(self) -> str:
        """The answer as far as it came."""
        return "".join(self._text)

    @property
    def terminals(self) -> int:
        """How many events have ended it."""
        return len(self._terminals)

    @property
    def usage(self) -> dict[str, Any]:
        """The tokens, as OpenAI shapes them; empty where none were reported."""
        usage = self._terminals[0][0].get("usage") if self._terminals else None
        return usage if isinstance(usage, dict) else {}

    @property
    def e2e(self) -> float | None:
        """Until the terminal event; None where there was none."""
        return self._terminals[0][1] - self._due if self._terminals else None

    def take(self, chunk: bytes, now: float) -> None:
        """Read what has come by ``now``."""
        for event in self._decoder.feed(chunk):
            self._see(event, now)

    def has_come_to(self, pieces: int) -> bool:
        """Whether the documents and so many pieces of text are there, and the end is not."""
        there = 0 if self.ttft is None else len(self.itl) + 1
        return self.ttfr is not None and there >= pieces and not self._terminals

    def failure(self) -> str | None:
        """Why the stream, now over, is no answer; None where it is one."""
        if self._breach is not None:
            return self._breach
        if len(self._terminals) != 1:
            return f"{len(self._terminals)} terminal events" if self._terminals else "no terminal event"
        last = self._terminals[0][0]
        if last["type"] == "query.failed":
            error = last.get("error")
            return f"query.failed: {error.get('code') if isinstance(error, dict) else error}"
        if last["type"] == "query.incomplete":
            return f"query.incomplete: {last.get('reason')}"
        return None

    def _see(self, event: ServerSentEvent, now: float) -> None:
        try:
            body = msgspec.json.decode(event.data)
        except msgspec.DecodeError:
            body = None
        if not isinstance(body, dict) or body.get("type") != event.name:
            self._breach = self._breach or f"an event that is not what its name says: {event.name}"
            return
        self.query_id = body.get("query_id", self.query_id)
        if event.name in TERMINAL:
            self._terminals.append((body, now))
        elif self._terminals:
            self._breach = self._breach or f"{event.name} after the terminal event"
        elif event.name == "retrieval.completed" and self.ttfr is None:
            self.ttfr = now - self._due
            self.sources = _documents(body.get("results"))
            self._measured(Latency.TTFR, self.ttfr)
        elif event.name == "output_text.annotation.added":
            self.cited += _documents([body.get("annotation")])
        elif event.name == "output_text.delta" and body.get("delta"):
            self._text.append(str(body["delta"]))
            self._time_text(now)

    def _time_text(self, now: float) -> None:
        if self.ttft is None:
            self.ttft = now - self._due
            self._measured(Latency.TTFT, self.ttft)
        else:
            self.itl.append(now - self._last_text)
            self._measured(Latency.ITL, self.itl[-1])
        self._last_text = now


def _documents(named: object) -> list[str]:
    listed = named if isinstance(named, list) else []
    return [str(each["document_id"]) for each in listed if isinstance(each, dict) and "document_id" in each]
