"""Overhead: the time that the stack adds to the engine's time to first token, and to each token after it.

The same prompts go through the whole stack (HTTP, search, layout, admission, Serve) and straight to the engine, in
alternating order. Each side has a KV namespace of its own, so neither hits the other's KV in vLLM's prefix cache.
Documents are synthetic and new in every round, so both sides prefill everything but the system prompt.

A single stream ends with its first token, to fit more pairs into the time. Tokens after the first are timed in an extra
run in which all streams repeat a round's last question: its prompt is cached on both sides, so all streams decode at
once. In the first run it would be chance which stream decodes while another prefills.

The baseline is the engine timed in its own process. Limits: one machine, one model, no cached documents.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import httpx
import msgspec
from httpx_sse import aconnect_sse

from examine.measuring.statistics import percentile
from loadtest.traffic.synthetic_corpus import SyntheticCorpus
from protocol.documents import UNFINISHED
from protocol.errors import InternalError
from protocol.parts import PromptLayout, Retriever
from protocol.plans import PrefillPlan
from protocol.prompts import ChatMessage, Prompt
from protocol.retrieval import SearchRequest
from protocol.timing import StreamClock, StreamTiming

_DECODING_ROUNDS = 4
"""Enough rounds to time a token, because every answer has many."""


class EngineClock(Protocol):
    """Times streams in the engine's own process."""

    async def time_stream(self, plan: PrefillPlan, max_tokens: int) -> StreamTiming:
        """Time a plan's stream next to the engine."""


class OverheadRow(msgspec.Struct, frozen=True):
    """Times to first token in milliseconds with ``streams`` concurrent streams.

    Overheads are percentiles of the differences of pairs. ``p50_overhead_share`` is ``p50_overhead_ms`` over the
    engine's median. A pair is the n-th fastest stream of a round on both sides: with one stream, the same prompt; with
    more, the order of streams is chance. ``per_token_overhead_ms`` is the same for the mean time between tokens, with
    cached prompts; None if answers had only one token.
    """

    streams: int
    samples: int
    engine_p50_ms: float
    engine_p99_ms: float
    stack_p50_ms: float
    stack_p99_ms: float
    p50_overhead_ms: float
    p99_overhead_ms: float
    p50_overhead_share: float
    engine_per_token_ms: float | None
    stack_per_token_ms: float | None
    per_token_overhead_ms: float | None


class OverheadResult(msgspec.Struct, frozen=True):
    """All rows, and the results of the first one again on the top level."""

    prompt_tokens_p50: float
    p50_overhead_ms: float
    p99_overhead_ms: float
    p50_overhead_share: float
    per_token_overhead_ms: float | None
    by_streams: dict[str, OverheadRow]


def rounds_of(streams: int, wanted: int) -> int:
    """Return how many rounds of all ``streams`` take the ``wanted`` samples: two at least, so each side goes first."""
    return max(2, -(-wanted // streams))


def questions_of(samples: Mapping[int, int]) -> int:
    """Return how many questions ``samples[n]`` samples with n streams take, with the one that warms up."""
    return 1 + sum(rounds_of(streams, wanted) * streams for streams, wanted in samples.items())


async def ingest(http: httpx.AsyncClient, collection: str, corpus: SyntheticCorpus) -> None:
    """Ingest the corpus into a collection of the stack. Raises InternalError if a document fails."""
    sent = await http.post(
        f"/v1/collections/{collection}/documents:batch",
        content=b"\n".join(corpus.batches()),
        headers={"Content-Type": "application/x-ndjson"},
    )
    job: dict[str, Any] = sent.raise_for_status().json()
    while job["status"] in UNFINISHED:
        await asyncio.sleep(0.1)
        job = (await http.get(f"/v1/jobs/{job['job_id']}")).raise_for_status().json()
    if job["failed_documents"]:
        raise InternalError(f"the corpus was not ingested completely: {job['last_error']}")


class OverheadBenchmark:
    """Measures a running stack over HTTP and its engine directly.

    ``tenant`` is the stack's default tenant. Its collection ``collection`` gets the synthetic documents.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        retriever: Retriever,
        engine: EngineClock,
        layout: PromptLayout,
        tenant: str,
        collection: str,
        top_k: int,
        max_tokens: int,
    ) -> None:
        self._http = http
        self._retriever = retriever
        self._engine = engine
        self._layout = layout
        self._tenant = tenant
        self._collection = collection
        self._top_k = top_k
        self._max_tokens = max_tokens
        # By question.
        self._prompt_tokens: dict[str, int] = {}

    async def run(
        self, samples: dict[int, int], corpus: SyntheticCorpus, progress: Callable[[int], None]
    ) -> OverheadResult:
        """Take about ``samples[n]`` samples with n concurrent streams. ``progress`` is called after each round."""
        questions = iter(corpus.questions)
        # The first pair warms up both sides, caches the system prompt, and does not count.
        await self._pair([next(questions)], True, self._max_tokens)
        rows = {}
        for streams, wanted in samples.items():
            stack: list[StreamTiming] = []
            engine: list[StreamTiming] = []
            stack_again: list[StreamTiming] = []
            engine_again: list[StreamTiming] = []
            rounds = rounds_of(streams, wanted)
            for number in range(rounds):
                asked = [next(questions) for _ in range(streams)]
                stack_first = number % 2 == 0
                by_stack, by_engine = await self._pair(asked, stack_first, 1 if streams == 1 else self._max_tokens)
                stack += by_stack
                engine += by_engine
                if number < _DECODING_ROUNDS:
                    by_stack, by_engine = await self._pair([asked[-1]] * streams, stack_first, self._max_tokens)
                    stack_again += by_stack
                    engine_again += by_engine
                progress(streams)
            rows[str(streams)] = _row(streams, (stack, engine), (stack_again, engine_again))
        first = next(iter(rows.values()))
        return OverheadResult(
            prompt_tokens_p50=percentile(list(self._prompt_tokens.values()), 50),
            p50_overhead_ms=first.p50_overhead_ms,
            p99_overhead_ms=first.p99_overhead_ms,
            p50_overhead_share=first.p50_overhead_share,
            per_token_overhead_ms=first.per_token_overhead_ms,
            by_streams=rows,
        )

    async def _pair(
        self, questions: list[str], stack_first: bool, max_tokens: int
    ) -> tuple[list[StreamTiming], list[StreamTiming]]:
        prompts = {question: await self.prompt(question, max_tokens) for question in dict.fromkeys(questions)}
        self._prompt_tokens |= {question: prompt.token_count for question, prompt in prompts.items()}
        plans = [
            PrefillPlan(f"bench-{time.monotonic_ns()}", "", "bench-overhead", prompts[question])
            for question in questions
        ]

        def by_stack() -> Awaitable[list[StreamTiming]]:
            return asyncio.gather(*(self._through_stack(question, max_tokens) for question in questions))

        def by_engine() -> Awaitable[list[StreamTiming]]:
            return asyncio.gather(*(self._engine.time_stream(plan, max_tokens) for plan in plans))

        if stack_first:
            return await by_stack(), await by_engine()
        engine = await by_engine()
        return await by_stack(), engine

    async def prompt(self, question: str, max_tokens: int) -> Prompt:
        """Return the prompt that the stack makes of this question.

        The search has a space more, which changes no result: the retriever remembers the vectors of questions, and is
        to embed this one for the stack.
        """
        request = SearchRequest(self._tenant, self._collection, f"{question} ", self._top_k)
        async for candidates in self._retriever.search(request):
            if candidates.final:
                return self._layout.lay_out([ChatMessage("user", question)], candidates.docs, max_tokens)
        raise InternalError("the search ended without its final documents")

    async def _through_stack(self, question: str, max_tokens: int) -> StreamTiming:
        body = {
            "query": question,
            "collection": self._collection,
            "top_k": self._top_k,
            "max_tokens": max_tokens,
            "stream": True,
        }
        texts = StreamClock()
        async with aconnect_sse(self._http, "POST", "/query", json=body) as source:
            source.response.raise_for_status()
            async for event in source.aiter_sse():
                payload: dict[str, Any] = event.json()
                # A token that completes no character sends no delta. Then the end of the answer is its first event.
                if payload["type"] == "output_text.delta" or (
                    payload["type"] == "query.completed" and not texts.started
                ):
                    texts.arrived()
                if payload["type"] == "query.failed":
                    raise InternalError(f"a query of the benchmark failed: {payload['error']['message']}")
        return texts.timing()


def _row(
    streams: int,
    anew: tuple[list[StreamTiming], list[StreamTiming]],
    cached: tuple[list[StreamTiming], list[StreamTiming]],
) -> OverheadRow:
    """Make a row from the stack's and the engine's timings, of newly prefilled prompts and of cached ones."""
    through, alone = ([timing.first_token_s * 1000 for timing in timings] for timings in anew)
    overheads = _differences(through, alone, streams)
    per_token_through, per_token_alone = (
        [timing.per_token_s * 1000 for timing in timings if timing.per_token_s is not None] for timings in cached
    )
    decoded = len(per_token_alone) == len(per_token_through) == len(cached[0])
    engine_p50_ms = percentile(alone, 50)
    return OverheadRow(
        streams=streams,
        samples=len(overheads),
        engine_p50_ms=engine_p50_ms,
        engine_p99_ms=percentile(alone, 99),
        stack_p50_ms=percentile(through, 50),
        stack_p99_ms=percentile(through, 99),
        p50_overhead_ms=percentile(overheads, 50),
        p99_overhead_ms=percentile(overheads, 99),
        p50_overhead_share=percentile(overheads, 50) / engine_p50_ms,
        engine_per_token_ms=percentile(per_token_alone, 50) if decoded else None,
        stack_per_token_ms=percentile(per_token_through, 50) if decoded else None,
        per_token_overhead_ms=(
            percentile(_differences(per_token_through, per_token_alone, streams), 50) if decoded else None
        ),
    )


def _differences(through: list[float], alone: list[float], streams: int) -> list[float]:
    """Return the differences between the n-th fastest streams of each round of ``streams`` samples."""
    rounds = range(0, len(through), streams)
    pairs = (zip(sorted(through[n : n + streams]), sorted(alone[n : n + streams]), strict=True) for n in rounds)
    return [more - less for pair in pairs for more, less in pair]
