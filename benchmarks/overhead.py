"""What the stack adds to the engine's time to first token.

The same prompts go through the whole stack (HTTP, search, layout, admission, Serve) and straight to the engine, in
turn: round by round, in alternating order, each under a KV namespace of its own, so that neither finds in vLLM's
prefix cache what the other has just computed. Documents are synthetic and every round's are new, so all but the system
prompt is prefilled anew on both sides.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import httpx
import msgspec
from httpx_sse import aconnect_sse

from benchmarks.corpus import SyntheticCorpus
from benchmarks.statistics import percentile
from protocol.documents import UNFINISHED
from protocol.errors import InternalError
from protocol.parts import PromptLayout, Retriever
from protocol.plans import PrefillPlan
from protocol.prompts import ChatMessage
from protocol.retrieval import SearchRequest


class EngineClock(Protocol):
    """The engine's own time to first token, without the stack around it."""

    async def time_to_first_token(self, plan: PrefillPlan) -> float:
        """Seconds to the first token of a plan, measured beside the engine."""


class OverheadRow(msgspec.Struct, frozen=True):
    """Times to first token in milliseconds with so many ``streams`` at once.

    Overheads are percentiles of the differences pair by pair; the share is that of ``p50_overhead_ms`` in the engine's
    median. A pair is the n-th quickest of a round on both sides: one prompt where there is one stream; where there are
    more, whose turn comes when is chance and no overhead.
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


class OverheadResult(msgspec.Struct, frozen=True):
    """The rows, and the figures of one stream by themselves."""

    prompt_tokens_p50: float
    p50_overhead_ms: float
    p99_overhead_ms: float
    p50_overhead_share: float
    by_streams: dict[str, OverheadRow]


async def ingest(http: httpx.AsyncClient, collection: str, corpus: SyntheticCorpus) -> None:
    """Put the corpus into a collection of the stack. Raises InternalError unless all of it goes in."""
    sent = await http.post(
        f"/v1/collections/{collection}/documents:batch",
        content=corpus.json_lines(),
        headers={"Content-Type": "application/x-ndjson"},
    )
    job: dict[str, Any] = sent.raise_for_status().json()
    while job["status"] in UNFINISHED:
        await asyncio.sleep(0.1)
        job = (await http.get(f"/v1/jobs/{job['job_id']}")).raise_for_status().json()
    if job["failed_documents"]:
        raise InternalError(f"the corpus did not go in whole: {job['last_error']}")


class OverheadBenchmark:
    """Measures a running stack from outside and its engine from inside.

    ``tenant`` is whom the stack takes the benchmark's requests for; its collection ``collection`` receives the
    synthetic documents.
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
    ) -> None:
        self._http = http
        self._retriever = retriever
        self._engine = engine
        self._layout = layout
        self._tenant = tenant
        self._collection = collection
        self._top_k = top_k
        self._prompt_tokens: list[int] = []

    async def run(
        self, samples: dict[int, int], corpus: SyntheticCorpus, progress: Callable[[int], None]
    ) -> OverheadResult:
        """Take about ``samples[n]`` samples with n streams at once; ``progress`` hears of every finished pair."""
        questions = iter(corpus.questions)
        # One pair that does not count: both sides warm up, and the system prompt is cached on both.
        await self._pair([next(questions)], stack_first=True)
        rows = {}
        for streams, wanted in samples.items():
            stack: list[float] = []
            engine: list[float] = []
            rounds = max(2, -(-wanted // streams))
            for number in range(rounds):
                asked = [next(questions) for _ in range(streams)]
                by_stack, by_engine = await self._pair(asked, stack_first=number % 2 == 0)
                stack += sorted(by_stack)
                engine += sorted(by_engine)
                progress(streams)
            rows[str(streams)] = _row(streams, stack, engine)
        first = next(iter(rows.values()))
        return OverheadResult(
            prompt_tokens_p50=percentile(self._prompt_tokens, 50),
            p50_overhead_ms=first.p50_overhead_ms,
            p99_overhead_ms=first.p99_overhead_ms,
            p50_overhead_share=first.p50_overhead_share,
            by_streams=rows,
        )

    async def _pair(self, questions: list[str], stack_first: bool) -> tuple[list[float], list[float]]:
        plans = [await self._plan(question) for question in questions]
        self._prompt_tokens += [plan.prompt.token_count for plan in plans]

        def by_stack() -> Awaitable[list[float]]:
            return asyncio.gather(*(self._through_stack(question) for question in questions))

        def by_engine() -> Awaitable[list[float]]:
            return asyncio.gather(*(self._engine.time_to_first_token(plan) for plan in plans))

        if stack_first:
            return await by_stack(), await by_engine()
        engine = await by_engine()
        return await by_stack(), engine

    async def _plan(self, question: str) -> PrefillPlan:
        """The very prompt that the stack makes of this question."""
        request = SearchRequest(self._tenant, self._collection, question, self._top_k)
        async for candidates in self._retriever.search(request):
            if candidates.final:
                prompt = self._layout.lay_out([ChatMessage("user", question)], candidates.docs, max_tokens=1)
                return PrefillPlan(f"bench-{time.monotonic_ns()}", "", "bench-overhead", prompt)
        raise InternalError("the search ended without its final documents")

    async def _through_stack(self, question: str) -> float:
        body = {
            "query": question,
            "collection": self._collection,
            "top_k": self._top_k,
            "max_tokens": 1,
            "stream": True,
        }
        began = time.perf_counter()
        async with aconnect_sse(self._http, "POST", "/query", json=body) as source:
            source.response.raise_for_status()
            first: float | None = None
            async for event in source.aiter_sse():
                payload: dict[str, Any] = event.json()
                # A token that completes no character sends no delta: then the end of the answer is its first sign.
                if payload["type"] in ("output_text.delta", "query.completed") and first is None:
                    first = time.perf_counter() - began
                if payload["type"] == "query.failed":
                    raise InternalError(f"a query of the benchmark failed: {payload['error']['message']}")
        if first is None:
            raise InternalError("a stream of the benchmark ended without a token")
        return first


def _row(streams: int, stack: list[float], engine: list[float]) -> OverheadRow:
    engine_p50_ms = percentile(engine, 50) * 1000
    overheads = [(through - alone) * 1000 for through, alone in zip(stack, engine, strict=True)]
    return OverheadRow(
        streams=streams,
        samples=len(overheads),
        engine_p50_ms=engine_p50_ms,
        engine_p99_ms=percentile(engine, 99) * 1000,
        stack_p50_ms=percentile(stack, 50) * 1000,
        stack_p99_ms=percentile(stack, 99) * 1000,
        p50_overhead_ms=percentile(overheads, 50),
        p99_overhead_ms=percentile(overheads, 99),
        p50_overhead_share=percentile(overheads, 50) / engine_p50_ms,
    )
