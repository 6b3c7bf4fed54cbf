"""The sustained benchmark's turns and arithmetic, with scripted times. No engine runs."""

import asyncio
from contextlib import asynccontextmanager
from itertools import groupby

import pytest

from examine.measuring.engines import Generation
from examine.measuring.kv_paths import random_segment
from protocol.errors import ConfigError
from protocol.generation import PrefillResult
from protocol.plans import Reuse
from protocol.prompts import Prompt, SegmentKind
from protocol.tiers import Tier
from ragtree_lab.measuring.systems import FIRST_TOKEN, System
from ragtree_lab.sustained import PLAIN_WARM_UP, TURN, SustainedBenchmark

WARM_UP = PLAIN_WARM_UP + 2
# A stretch is a turn and a half.
STRETCH = TURN + TURN // 2
BACKGROUND_S = 0.02


def prompts(kind: str, count: int) -> list[Prompt]:
    return [
        Prompt(
            (
                random_segment(f"{kind} document {number}", 80),
                random_segment(f"{kind} question {number}", 20, SegmentKind.QUESTION),
            )
        )
        for number in range(count)
    ]


class ScriptedSystems:
    """Systems by name. ``ttft_ms`` has a system's TTFT in each stretch. Only ours has background work."""

    def __init__(self, ttft_ms: dict[str, list[float]]) -> None:
        self._ttft_ms = ttft_ms
        self.log: list[tuple[str, str]] = []

    @asynccontextmanager
    async def ours(self, reuse=Reuse.EXACT):
        composes = reuse is not Reuse.EXACT
        async with self.running("ragtree-composed" if composes else "ragtree") as system:
            yield system

    @asynccontextmanager
    async def running(self, name, ram_tokens=0):
        answered = 0

        async def answer(prompt, sampling=FIRST_TOKEN):
            nonlocal answered
            kind, _, number = prompt.segments[0].key.split()
            self.log.append((name, f"{kind} {number}"))
            if kind == "warm-up":
                return Generation(0.0, PrefillResult(100, 0, 1.0), "", ())
            ttft_ms = self._ttft_ms[name][answered // STRETCH]
            answered += 1
            found = {
                "ragtree": PrefillResult(100, 40, 1.0),
                "ragtree-composed": PrefillResult(100, 40, 1.0, composed_tokens=30),
            }
            return Generation(ttft_ms, found.get(name, PrefillResult(100, 0, 1.0)), "", ())

        async def settle():
            self.log.append((name, "settled"))
            if name == "ragtree":
                await asyncio.sleep(BACKGROUND_S)

        yield System(answer, settle, 0, {Tier.HOST: 100, Tier.DISK: 200})

    def turns(self) -> list[tuple[str, list[str]]]:
        """Names in the order of their turns, each with what it did, without the warm-up."""
        measured = self.log[next(at for at, (_, did) in enumerate(self.log) if did.startswith("measured")) :]
        return [(name, [did for _, did in group]) for name, group in groupby(measured, key=lambda entry: entry[0])]


@pytest.fixture
def systems():
    return ScriptedSystems({"vllm": [90, 80], "vllm-prefix": [45, 50], "ragtree": [30, 20]})


async def measured(systems, against=("vllm", "vllm-prefix"), count=2 * STRETCH):
    benchmark = SustainedBenchmark(systems, against, STRETCH)
    return await benchmark.run(prompts("warm-up", WARM_UP), prompts("measured", count), lambda *_: None)


async def test_composed_reuse_is_compared_with_exact_reuse_too():
    systems = ScriptedSystems({"vllm": [90, 80], "ragtree": [30, 20], "ragtree-composed": [15, 10]})
    benchmark = SustainedBenchmark(systems, ["vllm"], STRETCH, Reuse.COMPOSED)
    result = await benchmark.run(prompts("warm-up", WARM_UP), prompts("measured", 2 * STRETCH), lambda *_: None)
    first, last = result.stretches
    assert first.baseline_mean_ttft_ms == {"vllm": 90, "ragtree-exact": 30}
    assert last.speedup == {"vllm": 8.0, "ragtree-exact": 2.0}
    assert (first.token_hit_rate, first.composed_rate) == (0.7, 0.3)


async def test_each_stretch_is_compared_with_every_baseline(systems):
    result = await measured(systems)
    first, last = result.stretches
    assert (first.prompts, first.mean_ttft_ms, first.token_hit_rate) == (STRETCH, 30, 0.4)
    assert first.baseline_mean_ttft_ms == {"vllm": 90, "vllm-prefix": 45}
    assert first.speedup == {"vllm": 3.0, "vllm-prefix": 1.5}
    assert last.speedup == {"vllm": 4.0, "vllm-prefix": 2.5}
    assert result.last_over_first == pytest.approx({"vllm": 4 / 3, "vllm-prefix": 5 / 3})
    assert (result.prompts, result.document_tokens, result.memory_tokens) == (2 * STRETCH, 2 * STRETCH * 80, 300)


async def test_systems_answer_without_a_pause_and_settle_at_the_end_of_their_turns(systems):
    await measured(systems)
    turns = systems.turns()
    assert [name for name, _ in turns[:9]] == [
        *("vllm", "vllm-prefix", "ragtree"), *("vllm-prefix", "ragtree", "vllm"), *("ragtree", "vllm", "vllm-prefix"),
    ]  # fmt: skip
    for name, did in turns:
        assert did.pop() == "settled", name
        assert "settled" not in did, "a system waited between two answers"
    assert [len(did) for _, did in turns] == [TURN] * 3 + [STRETCH - TURN] * 3 + [TURN] * 3 + [STRETCH - TURN] * 3
    for name in ("vllm", "vllm-prefix", "ragtree"):
        asked = [one for other, did in turns if other == name for one in did]
        assert asked == [f"measured {number}" for number in range(2 * STRETCH)]


async def test_background_work_counts_as_time_of_its_system(systems):
    result = await measured(systems)
    for stretch in result.stretches:
        # A stretch has two turns, and each ends with the work.
        assert stretch.served_per_s["ragtree"] <= STRETCH / (2 * BACKGROUND_S)


async def test_every_system_that_keeps_something_gets_all_of_the_warm_up(systems):
    await measured(systems)
    warmed = [name for name, did in systems.log if did.startswith("warm-up")]
    assert {name: warmed.count(name) for name in warmed} == {
        "vllm": PLAIN_WARM_UP, "vllm-prefix": WARM_UP, "ragtree": WARM_UP,
    }  # fmt: skip


async def test_incomplete_stretch_is_left_out(systems):
    result = await measured(systems, count=2 * STRETCH + 1)
    assert (result.prompts, len(result.stretches)) == (2 * STRETCH, 2)
    assert len([did for _, did in systems.log if did.startswith("measured")]) == 3 * 2 * STRETCH


async def test_one_baseline_is_enough_and_unknown_ones_are_refused(systems):
    result = await measured(systems, against=("vllm-prefix",))
    assert result.last_over_first.keys() == {"vllm-prefix"}
    with pytest.raises(ConfigError, match="unknown baseline sglang"):
        SustainedBenchmark(systems, ["sglang"], STRETCH)


async def test_less_than_two_stretches_are_refused(systems):
    with pytest.raises(ConfigError, match="less than two stretches"):
        await measured(systems, count=2 * STRETCH - 1)
