"""Sustained reuse: compares the stack with plain vLLM on prompts whose pairs of documents are always new.

There are more documents than can be kept. Of exact KV, only a prompt's first document can be reused: the second is
always computed and saved, and is useless later. A cache that lets such documents evict useful ones gets slower with
every prompt. Composed prompts can reuse both. The baselines are ``vllm`` without any reuse, ``vllm-prefix`` with vLLM's
own prefix cache and, if prompts may be composed, our system without that.

All systems get the same prompts, one after another without a pause, so background work slows the prompts behind it.
They take turns of a few prompts, so that slow drifts of the machine affect all alike. There is a pause only between
turns, until no background work is left that would slow the next system.

Limits: one request at a time, so no queueing. The first prompt of a turn meets no background work.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from statistics import mean
from typing import NamedTuple

import msgspec

from examine.measuring import Progress
from examine.measuring.engines import Generation
from protocol.errors import ConfigError
from protocol.plans import Reuse
from protocol.prompts import Prompt
from ragtree_lab.measuring.baselines import BASELINES, check_baselines
from ragtree_lab.measuring.phases import one_by_one
from ragtree_lab.measuring.systems import OURS, OURS_EXACT, System, Systems
from ragtree_lab.workloads.retrieved_prompts import document_tokens

PLAIN_WARM_UP = 3
"""Warm-up prompts of a system that keeps nothing."""

TURN = 10
"""Prompts that a system gets before it is the next one's turn."""


class Stretch(msgspec.Struct, frozen=True):
    """Consecutive prompts: our mean TTFT in milliseconds, and those of the baselines by name.

    ``speedup`` is how many times lower ours is. ``served_per_s`` has each system's prompts per second, until no
    background work is left. ``token_hit_rate`` is the share of our prompt tokens that were not computed, and
    ``composed_rate`` is the share of them that had KV from elsewhere.
    """

    prompts: int
    mean_ttft_ms: float
    baseline_mean_ttft_ms: dict[str, float]
    speedup: dict[str, float]
    served_per_s: dict[str, float]
    token_hit_rate: float
    composed_rate: float = 0.0


class SustainedResult(msgspec.Struct, frozen=True):
    """All complete stretches in order, and for each baseline the last one's speed-up over the first one's.

    ``document_tokens`` counts the KV of all prompts' documents, equal prefixes once; ``memory_tokens`` is the room for
    KV.
    """

    prompts: int
    document_tokens: int
    memory_tokens: int
    stretches: list[Stretch]
    last_over_first: dict[str, float]


class _Turn(NamedTuple):
    """A system's answers to a turn's prompts, and the seconds until it has settled."""

    came: list[Generation]
    seconds: float


class SustainedBenchmark:
    """Runs prompts in stretches of ``stretch`` on our stack and the systems ``against`` it.

    Our prompts may use KV as ``reuse`` says. Raises ConfigError for unknown baselines.
    """

    def __init__(self, systems: Systems, against: Sequence[str], stretch: int, reuse: Reuse = Reuse.EXACT) -> None:
        check_baselines(against)
        self._systems = systems
        self._plain = tuple(against)
        self._stretch = stretch
        self._reuse = reuse

    async def run(self, warm_up: Sequence[Prompt], prompts: Sequence[Prompt], progress: Progress) -> SustainedResult:
        """Measure the complete stretches of ``prompts`` after ``warm_up``.

        Raises ConfigError for less than two stretches, and what systems raise.
        """
        if len(prompts) < 2 * self._stretch:
            raise ConfigError(f"{len(prompts)} prompts are less than two stretches of {self._stretch}", "pairs")
        measured = prompts[: len(prompts) // self._stretch * self._stretch]
        stretches = []
        async with AsyncExitStack() as running:
            ours = await running.enter_async_context(self._systems.ours(reuse=self._reuse))
            systems = {OURS: ours}
            if self._reuse is not Reuse.EXACT:
                systems[OURS_EXACT] = await running.enter_async_context(self._systems.ours())
            for name in self._plain:
                plain = self._systems.running(name, ram_tokens=ours.ram_tokens)
                systems[name] = await running.enter_async_context(plain)
            for name, system in systems.items():
                keeps = name in (OURS, OURS_EXACT) or BASELINES[name].prefix_caching
                given = warm_up if keeps else warm_up[:PLAIN_WARM_UP]
                await one_by_one(system, given, f"{name}, warming up", progress)
            order, done = [name for name in systems if name != OURS] + [OURS], 0
            for part in _parts(measured, self._stretch):
                turns: dict[str, list[_Turn]] = {name: [] for name in systems}
                for few in _parts(part, TURN):
                    for name in order:
                        turns[name].append(await _turn(systems[name], few))
                    # Each is the first as often as the others.
                    order.append(order.pop(0))
                    done += len(few)
                    progress("measuring", done, len(measured))
                stretches.append(_compared(turns))
        first, last = stretches[0].speedup, stretches[-1].speedup
        return SustainedResult(
            prompts=len(measured),
            document_tokens=document_tokens(measured),
            memory_tokens=sum(systems[OURS].memory_tokens.values()),
            stretches=stretches,
            last_over_first={name: last[name] / first[name] for name in first},
        )


async def _turn(system: System, prompts: Sequence[Prompt]) -> _Turn:
    began = time.perf_counter()
    came = [await system.answer(prompt) for prompt in prompts]
    # Background work must not slow the next system down, but it is part of this one's time.
    await system.settle()
    return _Turn(came, time.perf_counter() - began)


def _compared(turns: Mapping[str, Sequence[_Turn]]) -> Stretch:
    """Compare all systems' turns with the same prompts."""
    came = {name: [one for turn in taken for one in turn.came] for name, taken in turns.items()}
    ttft_ms = {name: mean(one.ttft_ms for one in each) for name, each in came.items()}
    ours = came[OURS]
    mine = ttft_ms.pop(OURS)
    tokens = sum(one.prefill.prompt_tokens for one in ours)
    return Stretch(
        prompts=len(ours),
        mean_ttft_ms=mine,
        baseline_mean_ttft_ms=ttft_ms,
        speedup={name: theirs / mine for name, theirs in ttft_ms.items()},
        served_per_s={name: len(came[name]) / sum(turn.seconds for turn in taken) for name, taken in turns.items()},
        token_hit_rate=sum(one.prefill.cached_tokens + one.prefill.composed_tokens for one in ours) / tokens,
        composed_rate=sum(one.prefill.composed_tokens for one in ours) / tokens,
    )


def _parts(prompts: Sequence[Prompt], size: int) -> Iterator[Sequence[Prompt]]:
    """Yield ``prompts`` in parts of ``size``; the last part may be shorter."""
    for begin in range(0, len(prompts), size):
        yield prompts[begin : begin + size]
