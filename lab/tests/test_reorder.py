"""The reorder benchmark's arithmetic, with scripted times, in virtual time. No engine runs."""

import asyncio
from collections.abc import Iterator
from contextlib import asynccontextmanager
from itertools import count, islice

import pytest
from virtual_time import run_in_virtual_time

from examine.measuring.engines import Generation
from examine.measuring.kv_paths import random_segment
from protocol.errors import ConfigError
from protocol.generation import PrefillResult
from protocol.plans import ControllerStats
from protocol.prompts import Prompt, SegmentKind
from protocol.tiers import Tier
from ragtree_lab.measuring.systems import FIRST_TOKEN, System
from ragtree_lab.reorder import ReorderBenchmark, ReorderSettings

WARM_UP, SATURATING, REQUESTS = 2, 3, 4
LOADS = (100.0, 200.0)


def prompts() -> Iterator[Prompt]:
    for number in count():
        question = random_segment(f"question {number}", 20, SegmentKind.QUESTION)
        yield Prompt((random_segment(f"document {number}", 80), question))


class PromptsOf:
    """A ``PromptStream`` without end whose documents have 80 tokens each; the first ``documents`` of them count."""

    def __init__(self, documents: int) -> None:
        self.document_tokens = 80 * documents
        self._prompts = prompts()

    def take(self, count: int) -> list[Prompt]:
        return list(islice(self._prompts, count))


class ScriptedStack:
    """Reports a TTFT of ``ttft_ms`` and records its prompts."""

    def __init__(self, ttft_ms: float, overtaken: int, kept: int = 100) -> None:
        self._ttft_ms = ttft_ms
        self._overtaken = overtaken
        self._kept = kept
        self.asked: list[str] = []

    @asynccontextmanager
    async def ours(self):
        async def answer(prompt, sampling=FIRST_TOKEN):
            self.asked.append(prompt.segments[0].key)
            await asyncio.sleep(self._ttft_ms / 1000)
            return Generation(self._ttft_ms, PrefillResult(100, 40, 1.0, loaded={Tier.HOST: 40}), "", ())

        async def settle():
            pass

        async def stats():
            return ControllerStats("FORESIGHT", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, largest_overtake=self._overtaken)

        yield System(answer, settle, 0, {Tier.HOST: self._kept}, stats)


def measured(first_come, reordering):
    benchmark = ReorderBenchmark(
        first_come, reordering, ReorderSettings(WARM_UP, SATURATING, REQUESTS, LOADS, window=32, seed=0)
    )
    return run_in_virtual_time(benchmark.run(PromptsOf(5), lambda *_: None))


def test_both_orders_get_the_same_prompts_and_mean_ttfts_are_compared():
    first_come, reordering = ScriptedStack(90, 0), ScriptedStack(30, 7)
    result = measured(first_come, reordering)
    assert first_come.asked == reordering.asked
    assert len(first_come.asked) == len(set(first_come.asked)) == WARM_UP + SATURATING + REQUESTS * len(LOADS)
    assert [result.ttft_ratio, *(row.ttft_ratio for row in result.rows)] == pytest.approx([3.0] * 3)
    assert (result.largest_overtake, result.window) == (7, 32)
    assert [row.reordered.token_hit_rate for row in result.rows] == [0.4, 0.4]


def test_rates_are_multiples_of_the_first_come_first_served_throughput():
    result = measured(ScriptedStack(90, 0), ScriptedStack(30, 0))
    assert result.sustainable_per_s > 0
    assert [row.load for row in result.rows] == list(LOADS)
    for row in result.rows:
        assert row.first_come.rate == row.reordered.rate == pytest.approx(row.load * result.sustainable_per_s)
        assert row.first_come.requests == row.reordered.requests == REQUESTS


def test_cache_that_fits_every_document_is_refused():
    with pytest.raises(ConfigError, match="can be kept"):
        measured(ScriptedStack(90, 0, kept=400), ScriptedStack(30, 0, kept=400))
