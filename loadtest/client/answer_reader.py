"""Read one streamed answer: the times of its parts, and whether it ended properly."""

from collections.abc import Callable
from typing import Any

import msgspec

from loadtest.client.latency import Latency
from loadtest.client.sse_decoder import ServerSentEvent, SseDecoder

TERMINAL = frozenset({"query.completed", "query.incomplete", "query.failed"})


class AnswerReader:
    """Reads one stream. ``on_latency`` receives each latency in seconds as soon as it is known.

    It does not receive E2E, because a second terminal event after the first makes the answer a failure.
    """

    def __init__(self, due: float, on_latency: Callable[[Latency, float], None]) -> None:
        self._due = due
        self._on_latency = on_latency
        self._decoder = SseDecoder()
        self._last_text = due
        self._terminals: list[tuple[dict[str, Any], float]] = []
        self._violation: str | None = None
        self.query_id: str | None = None
        self.ttfr: float | None = None
        self.ttft: float | None = None
        self.itl: list[float] = []
        self.sources: list[str] = []
        self.cited: list[str] = []
        self.tokens: list[tuple[str, float]] = []
        self._text: list[str] = []

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    @property
    def terminals(self) -> int:
        """The number of terminal events."""
        return len(self._terminals)

    @property
    def usage(self) -> dict[str, Any]:
        """The token counts in OpenAI's format; empty if none were reported."""
        usage = self._terminals[0][0].get("usage") if self._terminals else None
        return usage if isinstance(usage, dict) else {}

    @property
    def e2e(self) -> float | None:
        """Seconds until the terminal event, or None without one."""
        return self._terminals[0][1] - self._due if self._terminals else None

    def feed(self, chunk: bytes, now: float) -> None:
        """Read a chunk that arrived at ``now``."""
        for event in self._decoder.feed(chunk):
            self._handle(event, now)

    def has_reached(self, pieces: int) -> bool:
        """Return whether the documents and this many pieces of text have arrived, but not the end."""
        received = 0 if self.ttft is None else len(self.itl) + 1
        return self.ttfr is not None and received >= pieces and not self._terminals

    def failure(self) -> str | None:
        """Return why the finished stream is not a proper answer, or None if it is."""
        if self._violation is not None:
            return self._violation
        if len(self._terminals) != 1:
            return f"{len(self._terminals)} terminal events" if self._terminals else "no terminal event"
        last = self._terminals[0][0]
        if last["type"] == "query.failed":
            error = last.get("error")
            return f"query.failed: {error.get('code') if isinstance(error, dict) else error}"
        if last["type"] == "query.incomplete":
            return f"query.incomplete: {last.get('reason')}"
        return None

    def _handle(self, event: ServerSentEvent, now: float) -> None:
        try:
            body = msgspec.json.decode(event.data)
        except msgspec.DecodeError:
            body = None
        if not isinstance(body, dict) or body.get("type") != event.name:
            self._violation = self._violation or f"an event whose body does not match its name: {event.name}"
            return
        self.query_id = body.get("query_id", self.query_id)
        if event.name in TERMINAL:
            self._terminals.append((body, now))
        elif self._terminals:
            self._violation = self._violation or f"{event.name} after the terminal event"
        elif event.name == "retrieval.completed" and self.ttfr is None:
            self.ttfr = now - self._due
            self.sources = _documents(body.get("results"))
            self._on_latency(Latency.TTFR, self.ttfr)
        elif event.name == "output_text.annotation.added":
            self.cited += _documents([body.get("annotation")])
        elif event.name == "output_text.delta" and body.get("delta"):
            self._text.append(str(body["delta"]))
            self.tokens += [(str(each["token"]), float(each["logprob"])) for each in body.get("logprobs", ())]
            self._time_text(now)

    def _time_text(self, now: float) -> None:
        if self.ttft is None:
            self.ttft = now - self._due
            self._on_latency(Latency.TTFT, self.ttft)
        else:
            self.itl.append(now - self._last_text)
            self._on_latency(Latency.ITL, self.itl[-1])
        self._last_text = now


def _documents(named: object) -> list[str]:
    listed = named if isinstance(named, list) else []
    return [str(each["document_id"]) for each in listed if isinstance(each, dict) and "document_id" in each]
