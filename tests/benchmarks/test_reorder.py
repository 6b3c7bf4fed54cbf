"""The reorder benchmark's arithmetic, with scripted times. No engine runs."""

from collections.abc import Iterator
from contextlib import asynccontextmanager
from itertools import count, islice

import pytest

from benchmarks.measuring.engines import Generation
from benchmarks.measuring.kv_paths import random_segment
from benchmarks.measuring.systems import System
from benchmarks.reorder import ReorderBenchmark, ReorderSettings
from protocol.errors import ConfigError
from protocol.generation import PrefillResult
from protocol.plans import ControllerStats
from protocol.prompts import Prompt, SegmentKind
from protocol.tiers import Tier

WARM_UP, SATURATING, REQUESTS = 2, 3, 4
LOADS = (100.0, 200.0)


def prompts() -> Iterator[Prompt]:
    for number in count():
        question = random_segment(f"question {number}", 20, SegmentKind.QUESTION)
        yield Prompt((random_segment(f"document {number}", 80), question))


class ScriptedStack:
    """Reports a TTFT of ``ttft_ms`` and records its prompts."""

    def __init__(self, ttft_ms: float, overtaken: int, kept: int = 100) -> None:
        self._ttft_ms = ttft_ms
        self._overtaken = overtaken
        self._kept = kept
        self.asked: list[str] = []

    @asynccontextmanager
    async def ours(self):
        async def answer(prompt):
            self.asked.append(prompt.segments[0].key)
            return Generation(self._ttft_ms, PrefillResult(100, 40, 1.0, loaded={Tier.HOST: 40}), "", ())

        async def settle():
            pass

        async def stats():
            return ControllerStats("FORESIGHT", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, largest_overtake=self._overtaken)

        yield System(answer, settle, 0, {Tier.HOST: self._kept}, stats)


async def measured(first_come, reordering):
    benchmark = ReorderBenchmark(
        first_come, reordering, ReorderSettings(WARM_UP, SATURATING, REQUESTS, LOADS, window=32, seed=0)
    )
    return await benchmark.run(list(islice(prompts(), 5)), prompts(), lambda *_: None)


async def test_both_orders_get_the_same_prompts_and_mean_ttfts_are_compared():
    first_come, reordering = ScriptedStack(90, 0), ScriptedStack(30, 7)
    result = await measured(first_come, reordering)
    assert first_come.asked == reordering.asked
    assert len(first_come.asked) == len(set(first_come.asked)) == WARM_UP + SATURATING + REQUESTS * len(LOADS)
    assert (result.ttft_ratio, [row.ttft_ratio for row in result.rows]) == (3.0, [3.0, 3.0])
    assert (result.largest_overtake, result.window) == (7, 32)
    assert [row.reordered.token_hit_rate for row in result.rows] == [0.4, 0.4]


async def test_rates_are_multiples_of_the_first_come_first_served_throughput():
    result = await measured(ScriptedStack(90, 0), ScriptedStack(30, 0))
    assert result.sustainable_per_s > 0
    assert [row.load for row in result.rows] == list(LOADS)
    for row in result.rows:
        assert row.first_come.rate == row.reordered.rate == pytest.approx(row.load * result.sustainable_per_s)
        assert row.first_come.requests == row.reordered.requests == REQUESTS


async def test_cache_that_fits_every_document_is_refused():
    with pytest.raises(ConfigError, match="can be kept"):
        await measured(ScriptedStack(90, 0, kept=400), ScriptedStack(30, 0, kept=400))
