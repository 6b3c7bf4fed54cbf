"""One answer of a stack, as its client sees it."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

Ask = Callable[[dict[str, Any]], Iterator[dict[str, Any]]]
"""Sends the body of a query to the stack, and yields the events of its stream."""


class NoAnswer(Exception):
    """The stream of a query ended without an answer. The message says why."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, what it rests on, and what it took.

    ``found`` are the documents of the results, best first, one entry a chunk. ``cited`` are those of the passages that
    the answer rests on. Times are in milliseconds from sending the question, by the client; ``ttft_ms`` is None
    for an answer without text. ``computed_tokens`` of the prompt had no KV before, or had theirs computed again.
    """

    text: str
    model: str
    found: tuple[str, ...]
    cited: tuple[str, ...]
    finish_reason: str
    reuse: str
    fallback: str | None
    ttft_ms: float | None
    total_ms: float
    prompt_tokens: int
    cached_tokens: int
    composed_tokens: int

    @property
    def computed_tokens(self) -> int:
        """The rest of the prompt."""
        return self.prompt_tokens - self.cached_tokens - self.composed_tokens


class _Passage(msgspec.Struct):
    document_id: str


class _Details(msgspec.Struct):
    cached_tokens: int
    composed_tokens: int


class _Usage(msgspec.Struct):
    prompt_tokens: int
    prompt_tokens_details: _Details


class _Response(msgspec.Struct):
    """What is read of a reply."""

    output_text: str
    model: str
    results: tuple[_Passage, ...]
    cited: tuple[_Passage, ...]
    usage: _Usage
    finish_reason: str
    reuse: str
    fallback: str | None = None


def answer_to(ask: Ask, body: dict[str, Any]) -> Answer:
    """Ask, and return the answer. Raises NoAnswer if the stream ends without one, and what ``ask`` raises."""
    began = time.perf_counter()
    first: float | None = None
    for event in ask(body):
        kind = event.get("type")
        if kind == "output_text.delta" and first is None:
            first = time.perf_counter()
        if kind == "query.completed":
            ttft_ms = None if first is None else (first - began) * 1000
            return _answer(event, ttft_ms, (time.perf_counter() - began) * 1000)
        if kind == "query.failed":
            error = event.get("error")
            message = error.get("message") if isinstance(error, dict) else None
            raise NoAnswer(str(message or "the query failed"))
        if kind == "query.incomplete":
            raise NoAnswer(f"the answer is not complete: {event.get('reason')}")
    raise NoAnswer("the stream ended early")


def _answer(event: Mapping[str, Any], ttft_ms: float | None, total_ms: float) -> Answer:
    try:
        reply = msgspec.convert(event.get("response"), _Response)
    except msgspec.ValidationError as error:
        raise NoAnswer(f"the reply is not one of this API: {error}") from error
    return Answer(
        text=reply.output_text,
        model=reply.model,
        found=tuple(passage.document_id for passage in reply.results),
        cited=tuple(dict.fromkeys(passage.document_id for passage in reply.cited)),
        finish_reason=reply.finish_reason,
        reuse=reply.reuse,
        fallback=reply.fallback,
        ttft_ms=ttft_ms,
        total_ms=total_ms,
        prompt_tokens=reply.usage.prompt_tokens,
        cached_tokens=reply.usage.prompt_tokens_details.cached_tokens,
        composed_tokens=reply.usage.prompt_tokens_details.composed_tokens,
    )
