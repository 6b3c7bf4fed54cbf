"""The stack against plain vLLM under load: real questions, real retrieval, open-loop Poisson arrivals.

All systems (see `benchmarks.systems`) get the same prompts at the same times: ``ragtree``, ``vllm`` without any reuse,
``vllm-prefix`` with vLLM's own prefix cache. The first prompts go one after another to empty caches, the next ones warm
the caches up. Then rates are swept from the lowest up; at each the systems take turns, in alternating order, one at a
time.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import islice
from statistics import mean
from typing import NamedTuple

import msgspec

from benchmarks.engines import Generation
from benchmarks.progress import Progress
from benchmarks.retrieved_prompts import Arrival, document_tokens, poisson
from benchmarks.statistics import percentile
from benchmarks.systems import BASELINES, OURS, System, Systems, check_baselines
from protocol.prompts import Prompt
from protocol.tiers import Tier

SUSTAINED = 5.0
"""A rate is sustained while the mean TTFT stays within so many times that at the lowest rate (RAGCache, section 7)."""

LOADS = (0.4, 0.8, 1.0, 1.2, 1.6, 2.2, 3.0, 4.0, 5.5)
"""Rates that are swept where none are given: shares of what can be computed one after another without any reuse."""

FILLED = 3
"""How many times a warm-up fills vLLM's own cache."""


class ReplaySettings(msgspec.Struct, frozen=True):
    """How to replay: ``requests`` cold ones, ``warm_up`` more, then as many again at each of ``rates`` a second.

    No rates mean those of ``LOADS``.
    """

    requests: int
    warm_up: int
    seed: int
    rates: tuple[float, ...] = ()


class Measured(msgspec.Struct, frozen=True):
    """A system's requests: TTFT in milliseconds, and the share of prompt tokens that were not computed.

    ``rate`` is in requests a second; None where they went one after another. ``served_per_s`` is what came of it: all
    requests over the time from the first's arrival to the last one's first token.
    """

    rate: float | None
    requests: int
    served_per_s: float
    mean_ttft_ms: float
    p50_ttft_ms: float
    p99_ttft_ms: float
    token_hit_rate: float
    tokens: dict[str, int]


class SystemResult(msgspec.Struct, frozen=True):
    """A system: ``cold`` with nothing cached, then ``warm`` at each rate, up to the first that it does not sustain.

    ``throughput`` is the highest rate that it sustains, in requests a second: of those that were swept, if it was never
    ``beaten``. ``most_served_per_s`` is what it served at whatever rate.
    """

    cold: Measured
    warm: list[Measured]
    throughput: float
    beaten: bool
    most_served_per_s: float


class ReplayResult(msgspec.Struct, frozen=True):
    """Systems by name, and by baseline how many times lower ours has its mean TTFT, and how much higher its throughput.

    ``ttft_ratio`` is of the means over all requests at the rates that both sustain, the last of them with a long queue;
    ``ttft_ratio_by_rate`` at each of these, the first of them with hardly any. ``document_tokens`` counts the KV of all
    prompts' documents, equal prefixes once: what would have to be kept to compute nothing twice. ``cache_tokens`` is
    what an engine's KV cache holds, ``memory_tokens`` what ours can keep by tier.
    """

    document_tokens: int
    cache_tokens: int
    memory_tokens: dict[Tier, int]
    prompt_tokens: float
    rates: list[float]
    systems: dict[str, SystemResult]
    ttft_ratio: dict[str, float]
    ttft_ratio_by_rate: dict[str, list[float]]
    throughput_ratio: dict[str, float]


class ReplayBenchmark:
    """Replays arrivals on ours and the systems ``against`` it. Raises ConfigError for those that are no baselines."""

    def __init__(self, systems: Systems, against: Sequence[str], settings: ReplaySettings) -> None:
        check_baselines(against)
        self._systems = systems
        self._names = (*against, OURS)
        self._settings = settings

    async def run(self, prompts: Iterator[Prompt], document_tokens: int, progress: Progress) -> ReplayResult:
        """Replay ``prompts``, of which there must be enough. Raises what systems raise."""
        settings = self._settings
        first, warming = list(islice(prompts, settings.requests)), list(islice(prompts, settings.warm_up))
        async with AsyncExitStack() as running:
            systems = {name: await running.enter_async_context(self._systems.running(name)) for name in self._names}
            cold = {}
            for name, system in systems.items():
                cold[name] = await _one_by_one(system, first, f"{name}, cold", progress)
            for name, system in systems.items():
                prompts_for_it = _warm_up(name, warming, systems[OURS].cache_tokens)
                await _one_by_one(system, prompts_for_it, f"{name}, warming up", progress)
            rates = settings.rates or tuple(_significant(load / _prefill_s(cold[OURS].came)) for load in LOADS)
            warm: dict[str, list[Measured]] = {name: [] for name in systems}
            for number, rate in enumerate(rates):
                arrivals = poisson(prompts, rate, settings.requests, settings.seed)
                for name in list(systems)[:: -1 if number % 2 else 1]:
                    if len(_sustained(warm[name])) == number:
                        phase = await _open_loop(systems[name], arrivals, f"{name} at {rate:g}/s", progress)
                        warm[name].append(_measured(rate, phase))
        results = {name: _result(_measured(None, cold[name]), warm[name]) for name in systems}
        ratios = {name: ttft_ratios(results[name], results[OURS]) for name in self._names[:-1]}
        return ReplayResult(
            document_tokens=document_tokens,
            cache_tokens=systems[OURS].cache_tokens,
            memory_tokens=systems[OURS].memory_tokens,
            prompt_tokens=mean(prompt.token_count for prompt in (*first, *warming)),
            rates=list(rates),
            systems=results,
            ttft_ratio={name: over_all for name, (over_all, _) in ratios.items()},
            ttft_ratio_by_rate={name: each for name, (_, each) in ratios.items()},
            throughput_ratio={name: results[OURS].throughput / results[name].throughput for name in ratios},
        )


class _Phase(NamedTuple):
    """What came of a phase's prompts, and how long it took from the first one's arrival to the last one's token."""

    came: list[Generation]
    seconds: float


def _warm_up(name: str, prompts: Sequence[Prompt], cache_tokens: int) -> Sequence[Prompt]:
    """The prompts that warm a system up.

    Of vLLM's own cache, which forgets what was not used for longest, the last ones that fill it several times over
    leave what all of them would.
    """
    if name == OURS or not cache_tokens:
        return prompts
    if not BASELINES[name]:
        return ()
    for count in range(1, len(prompts)):
        if document_tokens(prompts[-count:]) > FILLED * cache_tokens:
            return prompts[-count:]
    return prompts


async def _one_by_one(system: System, prompts: Sequence[Prompt], step: str, progress: Progress) -> _Phase:
    came = []
    began = time.perf_counter()
    for done, prompt in enumerate(prompts, start=1):
        came.append(await system.answer(prompt))
        progress(step, done, len(prompts))
    seconds = time.perf_counter() - began
    await system.settle()
    return _Phase(came, seconds)


async def _open_loop(system: System, arrivals: Sequence[Arrival], step: str, progress: Progress) -> _Phase:
    """Send each prompt when its time comes, whatever has become of those before."""
    clock = asyncio.get_running_loop().time
    began = clock()
    done = 0

    async def send(arrival: Arrival) -> Generation:
        nonlocal done
        await asyncio.sleep(began + arrival.at_s - clock())
        came = await system.answer(arrival.prompt)
        done += 1
        progress(step, done, len(arrivals))
        return came

    async with asyncio.TaskGroup() as group:
        sent = [group.create_task(send(arrival)) for arrival in arrivals]
    seconds = clock() - began - arrivals[0].at_s
    # What goes on behind the answers must not slow the next system down.
    await system.settle()
    return _Phase([task.result() for task in sent], seconds)


def _prefill_s(cold: Sequence[Generation]) -> float:
    """Seconds that a prompt takes of which nothing is reused, from those of which some was."""
    computed = sum(one.prefill.prompt_tokens - one.prefill.cached_tokens for one in cold)
    tokens = mean(one.prefill.prompt_tokens for one in cold)
    return sum(one.ttft_ms for one in cold) / 1000 / computed * tokens


def _significant(rate: float) -> float:
    return float(f"{rate:.3g}")


def _measured(rate: float | None, phase: _Phase) -> Measured:
    came = phase.came
    times = [one.ttft_ms for one in came]
    prompt_tokens = sum(one.prefill.prompt_tokens for one in came)
    cached = sum(one.prefill.cached_tokens for one in came)
    tokens = {str(tier): sum(one.prefill.loaded.get(tier, 0) for one in came) for tier in Tier}
    return Measured(
        rate=rate,
        requests=len(came),
        served_per_s=len(came) / phase.seconds,
        mean_ttft_ms=mean(times),
        p50_ttft_ms=percentile(times, 50),
        p99_ttft_ms=percentile(times, 99),
        token_hit_rate=cached / prompt_tokens,
        tokens={**tokens, "computed": prompt_tokens - cached},
    )


def _sustained(warm: Sequence[Measured]) -> Sequence[Measured]:
    """The measurements up to the first whose mean TTFT is out of bounds."""
    for place, result in enumerate(warm):
        if result.mean_ttft_ms > SUSTAINED * warm[0].mean_ttft_ms:
            return warm[:place]
    return warm


def _result(cold: Measured, warm: list[Measured]) -> SystemResult:
    sustained = _sustained(warm)
    return SystemResult(
        cold=cold,
        warm=warm,
        throughput=sustained[-1].rate or 0.0,
        beaten=len(sustained) < len(warm),
        most_served_per_s=max(result.served_per_s for result in warm),
    )


def ttft_ratios(baseline: SystemResult, ours: SystemResult) -> tuple[float, list[float]]:
    """How many times lower ours has its mean TTFT, over all rates that both sustain and at each of them."""
    both = min(baseline.throughput, ours.throughput)
    pairs = [
        (theirs.mean_ttft_ms, mine.mean_ttft_ms)
        for theirs, mine in zip(baseline.warm, ours.warm, strict=False)
        if (theirs.rate or 0.0) <= both
    ]
    return sum(theirs for theirs, _ in pairs) / sum(mine for _, mine in pairs), [
        theirs / mine for theirs, mine in pairs
    ]
