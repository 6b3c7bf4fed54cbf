"""Requests a second and TTFT over HTTP: the stack against ``vllm serve``, with the same prompts."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from statistics import mean
from typing import Any

import httpx
import msgspec
from httpx_sse import aconnect_sse

from protocol.errors import InternalError
from protocol.prompts import Prompt
from protocol.timing import StreamClock

ANSWER_TOKENS = 8


class Asked(msgspec.Struct, frozen=True):
    """One answer over HTTP: seconds to its first token, and the prompt's tokens, of which some were cached."""

    ttft_s: float
    prompt_tokens: int
    cached_tokens: int


class Served(msgspec.Struct, frozen=True):
    """A server under load: requests a second, mean TTFT, and the share of the prompts' tokens that it had cached."""

    requests_per_s: float
    ttft_ms: float
    cached_share: float


Ask = Callable[[int], Awaitable[Asked]]
"""Asks a server for the answer to a prompt, by its number."""


async def served(ask: Ask, prompts: Sequence[int], streams: int) -> Served:
    """Answer all ``prompts``, ``streams`` at a time: each stream begins with the next one once its last one has ended.

    Raises what ``ask`` raises.
    """
    waiting = iter(prompts)
    answers: list[Asked] = []

    async def stream() -> None:
        answers.extend([await ask(number) for number in waiting])

    began = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(stream())
    took_s = asyncio.get_running_loop().time() - began
    return Served(
        len(answers) / took_s,
        1000 * mean(answer.ttft_s for answer in answers),
        sum(answer.cached_tokens for answer in answers) / sum(answer.prompt_tokens for answer in answers),
    )


def asks_stack(http: httpx.AsyncClient, collection: str, questions: Sequence[str], top_k: int) -> Ask:
    """Return what asks a stack one of the ``questions``. Raises InternalError if a query fails."""

    async def ask(number: int) -> Asked:
        body = {
            "query": questions[number],
            "collection": collection,
            "top_k": top_k,
            "max_tokens": ANSWER_TOKENS,
            "stream": True,
        }
        clock, usage = StreamClock(), None
        async with aclosing(_events(http, "/query", body)) as events:
            async for event in events:
                if event["type"] == "query.failed":
                    raise InternalError(f"a query of the benchmark failed: {event['error']['message']}")
                if event["type"] == "output_text.delta" or (event["type"] == "query.completed" and not clock.started):
                    clock.arrived()
                usage = event.get("usage") or usage
        return _asked(clock, usage)

    return ask


def asks_vllm(http: httpx.AsyncClient, model: str, prompts: Sequence[Prompt]) -> Ask:
    """Return what asks ``vllm serve`` for one of the ``prompts``. Raises InternalError if it has no answer."""

    async def ask(number: int) -> Asked:
        body = {
            "model": model,
            "prompt": list(prompts[number].token_ids),
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        clock, usage = StreamClock(), None
        async with aclosing(_events(http, "/v1/completions", body)) as events:
            async for event in events:
                if event.get("choices") and not clock.started:
                    clock.arrived()
                usage = event.get("usage") or usage
        return _asked(clock, usage)

    return ask


def _asked(clock: StreamClock, usage: dict[str, Any] | None) -> Asked:
    """Return what came of a stream, by the usage in its last event, which both have in OpenAI's format."""
    if usage is None:
        raise InternalError("a stream ended without its usage")
    details = usage.get("prompt_tokens_details") or {}
    return Asked(clock.timing().first_token_s, usage["prompt_tokens"], details.get("cached_tokens") or 0)


async def _events(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    async with aconnect_sse(http, "POST", path, json=body) as source:
        source.response.raise_for_status()
        async for event in source.aiter_sse():
            if event.data != "[DONE]":
                yield event.json()
