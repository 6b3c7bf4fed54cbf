"""The replay benchmark's arithmetic, with scripted times. No engine runs."""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import asynccontextmanager
from itertools import accumulate, count, groupby, islice

import pytest

from benchmarks.measuring.engines import Generation
from benchmarks.measuring.kv_paths import random_segment
from benchmarks.measuring.systems import System
from benchmarks.replay import ReplayBenchmark, ReplaySettings
from protocol.errors import ConfigError
from protocol.generation import PrefillResult
from protocol.prompts import Prompt, SegmentKind
from protocol.tiers import Tier

REQUESTS, EVERY, DRAWN, BASELINE_WARM_UP = 4, 5, 3, 2
WARM_UP = EVERY + DRAWN
# Twice REQUESTS run one after another. Then each rate has twice the requests of the previous one.
UNLOADED = 8
# Two documents of 80 tokens are more than three times this size; one is not.
CACHE_TOKENS = 30
COLD = {"vllm": 0, "vllm-prefix": 0, "ragtree": 0}
RATES = (500.0, 1000.0, 2000.0)


def prompts(kind: str = "") -> Iterator[Prompt]:
    for number in count():
        question = random_segment(f"{kind}question {number}", 20, SegmentKind.QUESTION)
        yield Prompt((random_segment(f"{kind}document {number}", 80), question))


class ScriptedSystems:
    """Systems by name. ``ttft_ms`` has a system's TTFT for each phase: cold, warm-up, unloaded, then each rate."""

    def __init__(self, ttft_ms: dict[str, list[float]], cached: dict[str, int]) -> None:
        self._ttft_ms = ttft_ms
        self._cached = cached
        self.asked: dict[str, list[str]] = {name: [] for name in ttft_ms}
        self.order: list[str] = []

    @asynccontextmanager
    async def running(self, name):
        warm_up = {"ragtree": WARM_UP, "vllm-prefix": BASELINE_WARM_UP, "vllm": 0}[name]
        ends = list(accumulate([REQUESTS, warm_up, UNLOADED, *(REQUESTS * 2**number for number in range(9))]))

        async def answer(prompt):
            phase = bisect_right(ends, len(self.asked[name]))
            self.asked[name].append(prompt.segments[0].key)
            self.order.append(f"{name} {phase}")
            cached = self._cached[name] if phase else 0
            loaded = {Tier.DISK: cached} if cached else {}
            return Generation(self._ttft_ms[name][phase], PrefillResult(100, cached, 1.0, loaded=loaded), "", ())

        async def settle():
            self.order.append(f"{name} settled")

        yield System(answer, settle, CACHE_TOKENS, {Tier.DISK: 7}) if name == "ragtree" else System(answer, settle)


async def replayed(systems, rates=RATES):
    settings = ReplaySettings(REQUESTS, DRAWN, 0, rates)
    every = list(islice(prompts("the set's "), EVERY))
    return await ReplayBenchmark(systems, ["vllm", "vllm-prefix"], settings).run(every, prompts(), lambda *_: None)


@pytest.fixture
def systems():
    return ScriptedSystems(
        {
            "vllm": [90, 0, 100, 110, 600, 900],
            "vllm-prefix": [90, 50, 60, 70, 90, 400],
            "ragtree": [95, 40, 20, 20, 25, 30],
        },
        {"vllm": 0, "vllm-prefix": 40, "ragtree": 80},
    )


async def test_system_is_measured_up_to_its_first_unsustained_rate(systems):
    result = await replayed(systems)
    assert [row.mean_ttft_ms for row in result.systems["vllm"].loaded] == [110, 600]
    assert [row.mean_ttft_ms for row in result.systems["vllm-prefix"].loaded] == [70, 90, 400]
    assert {name: (system.throughput, system.beaten) for name, system in result.systems.items()} == {
        "vllm": (500.0, True),
        "vllm-prefix": (1000.0, True),
        "ragtree": (2000.0, False),
    }
    assert result.throughput_ratio == {"vllm": 4.0, "vllm-prefix": 2.0}


async def test_every_rate_lasts_equally_long(systems):
    result = await replayed(systems)
    assert [row.requests for row in result.systems["ragtree"].loaded] == [REQUESTS, 2 * REQUESTS, 4 * REQUESTS]
    assert [system.unloaded.requests for system in result.systems.values()] == [UNLOADED] * 3


async def test_ttfts_are_compared_at_rates_that_the_baseline_sustains(systems):
    result = await replayed(systems)
    assert result.ttft_ratio_by_rate == {"vllm": [5.5], "vllm-prefix": [3.5, 3.6]}
    assert result.ttft_ratio == {"vllm": 5.5, "vllm-prefix": pytest.approx(160 / 45)}
    assert result.ttft_ratio_unloaded == {"vllm": 5.0, "vllm-prefix": 3.0}


async def test_ttfts_are_not_compared_at_rates_that_ours_does_not_sustain():
    overrun = ScriptedSystems(
        {
            "vllm": [90, 0, 100, 100, 200, 400],
            "vllm-prefix": [90, 50, 60, 60, 90, 100],
            "ragtree": [95, 40, 20, 20, 90, 110],
        },
        COLD,
    )
    result = await replayed(overrun)
    assert result.ttft_ratio_by_rate == {"vllm": [5.0, pytest.approx(200 / 90)], "vllm-prefix": [3.0, 1.0]}
    assert result.ttft_ratio["vllm"] == pytest.approx(300 / 110)
    assert result.throughput_ratio["vllm"] == 0.5
    assert {name: system.beaten for name, system in result.systems.items()} == {
        "vllm": False,
        "vllm-prefix": False,
        "ragtree": True,
    }


async def test_throughput_is_at_most_the_lowest_rate_if_none_is_sustained():
    slow = ScriptedSystems(
        {"vllm": [90, 0, 100, 900], "vllm-prefix": [90, 50, 60, 60, 90, 100], "ragtree": [95, 40, 20, 20, 90, 90]}, COLD
    )
    result = await replayed(slow)
    vllm = result.systems["vllm"]
    # Scripted answers are immediate, so the unloaded throughput exceeds the first rate.
    assert (vllm.sustained, vllm.beaten, vllm.throughput) == (0, True, RATES[0])
    assert vllm.unloaded.served_per_s > RATES[0]
    assert (result.ttft_ratio["vllm"], result.ttft_ratio_by_rate["vllm"]) == (5.0, [])


@pytest.mark.parametrize("against", [["vllm", "sglang"], ["ragtree"], ["vllm", "vllm"]])
def test_invalid_baselines_are_refused_before_the_run(systems, against):
    with pytest.raises(ConfigError):
        ReplayBenchmark(systems, against, ReplaySettings(REQUESTS, DRAWN, 0))


async def test_throughput_counts_from_the_first_arrival(systems):
    result = await replayed(systems)
    # Scripted answers are immediate, so throughput is about the arrival rate.
    for system in result.systems.values():
        warm = (system.unloaded, *system.loaded)
        assert system.most_served_per_s == max(row.served_per_s for row in warm)
        assert all(row.served_per_s > 0 for row in (system.cold, *warm))


async def test_all_systems_get_the_same_prompts_and_only_caches_are_warmed_up(systems):
    await replayed(systems)
    ours, prefix, plain = (systems.asked[name] for name in ("ragtree", "vllm-prefix", "vllm"))
    assert ours[:REQUESTS] == prefix[:REQUESTS] == plain[:REQUESTS]
    assert ours[REQUESTS + WARM_UP - BASELINE_WARM_UP :] == prefix[REQUESTS:]
    assert plain[REQUESTS:] == ours[REQUESTS + WARM_UP :][: UNLOADED + 3 * REQUESTS]
    assert len(set(ours)) == len(ours)
    assert sorted(ours[REQUESTS : REQUESTS + EVERY]) == [f"the set's document {number}" for number in range(EVERY)]


async def test_documents_that_fit_every_engines_cache_are_refused(systems):
    benchmark = ReplayBenchmark(systems, ["vllm"], ReplaySettings(REQUESTS, DRAWN, 0))
    with pytest.raises(ConfigError, match="80 tokens, less than 3 times the 30"):
        await benchmark.run(list(islice(prompts(), 1)), prompts(), lambda *_: None)


async def test_systems_take_turns_in_alternating_order(systems):
    await replayed(systems)
    phases = [phase for phase, _ in groupby(systems.order)]
    turns = [
        "vllm 2",
        "vllm-prefix 2",
        "ragtree 2",
        "vllm 3",
        "vllm-prefix 3",
        "ragtree 3",
        "ragtree 4",
        "vllm-prefix 4",
        "vllm 4",
        "vllm-prefix 5",
        "ragtree 5",
    ]
    assert phases[-22:] == [step for turn in turns for step in (turn, f"{turn.split()[0]} settled")]


async def test_tokens_are_counted_by_tier(systems):
    result = await replayed(systems)
    cold, (warm, *_) = result.systems["ragtree"].cold, result.systems["ragtree"].loaded
    assert (cold.rate, cold.token_hit_rate, cold.tokens["computed"]) == (None, 0, 100 * REQUESTS)
    assert (warm.token_hit_rate, warm.tokens["disk"], warm.tokens["computed"]) == (0.8, 80 * REQUESTS, 20 * REQUESTS)
    assert result.memory_tokens == {Tier.DISK: 7}
    assert result.document_tokens == 80 * EVERY


async def test_default_rates_follow_the_prefill_time_without_reuse():
    # No system sustains the first rate, so the run ends after it.
    slow = ScriptedSystems({name: [95.0, 95.0, 95.0, 900.0] for name in COLD}, COLD)
    result = await replayed(slow, rates=())
    # 95 ms for a hundred uncached tokens give 10.5 prompts per second.
    assert result.rates[:3] == [7.37, 10.5, 14.7]
