"""The stack against plain vLLM under load: real questions, real retrieval, open-loop Poisson arrivals.

All systems (see `benchmarks.measuring.systems`) get the same prompts at the same times: ``ragtree``, ``vllm`` without
any reuse, ``vllm-prefix`` with vLLM's own prefix cache. The first prompts go one after another to empty caches. Then
caches are warmed up, until everything was seen that is ever asked for: what is computed from then on, somebody has
forgotten. The next prompts go one after another again: no rate is lower. Then rates are swept upwards; at each the
systems take turns, in alternating order, one at a time.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import islice
from statistics import mean

import msgspec

from benchmarks.measuring.engines import Generation
from benchmarks.measuring.phases import Measured, one_by_one, open_loop
from benchmarks.measuring.progress import Progress
from benchmarks.measuring.systems import BASELINES, OURS, Systems, check_baselines
from benchmarks.workloads.retrieved_prompts import document_tokens, poisson
from protocol.errors import ConfigError
from protocol.prompts import Prompt
from protocol.tiers import Tier

SUSTAINED = 5.0
"""A rate is sustained while the mean TTFT stays within so many times that at the lowest rate (RAGCache, section 7)."""

UNLOADED = 2
"""How many times as many requests as at the first rate tell the TTFT at the lowest: all bounds hang on it."""

LOADS = (0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0, 11.2, 16.0)
"""Rates that are swept where none are given: shares of what can be computed one after another without any reuse."""

OUTGROWN = 3.0
"""How many times the documents have to outgrow the engines' KV cache at least, or there is little to compare."""

FILLED = 3
"""How many times a warm-up fills vLLM's own cache."""


class ReplaySettings(msgspec.Struct, frozen=True):
    """How to replay: ``requests`` cold ones, then all prompts once and ``warm_up`` more, then ``rates`` or ``LOADS``.

    At each rate requests arrive for as long as ``requests`` of them take at the first one, or the queue at a rate that
    is too high would be cut short.
    """

    requests: int
    warm_up: int
    seed: int
    rates: tuple[float, ...] = ()


class SystemResult(msgspec.Struct, frozen=True):
    """A system: ``cold`` with nothing cached, then warm: ``unloaded``, one request after another, and ``loaded``.

    That is at each rate, those that it sustains and the first that it does not; ``sustained`` counts the former.
    ``throughput`` is the highest of them, in requests a second: of those that were swept, if it was never ``beaten``,
    and where there is none, what it serves unloaded. ``most_served_per_s`` is what it served at whatever rate.
    """

    cold: Measured
    unloaded: Measured
    loaded: list[Measured]
    sustained: int
    throughput: float
    beaten: bool
    most_served_per_s: float


class ReplayResult(msgspec.Struct, frozen=True):
    """Systems by name, and by baseline how many times lower ours has its mean TTFT, and how much higher its throughput.

    ``ttft_ratio`` is of the means of all rates that both sustain, the last of them with a long queue, and of those
    unloaded where there is none; ``ttft_ratio_by_rate`` at each of these, ``ttft_ratio_unloaded`` without any queue.
    ``document_tokens`` counts the KV of all prompts' documents, equal prefixes once: what would have to be kept to
    compute nothing twice. ``cache_tokens`` is what an engine's KV cache holds, ``memory_tokens`` what ours can keep by
    tier.
    """

    document_tokens: int
    cache_tokens: int
    memory_tokens: dict[Tier, int]
    prompt_tokens: float
    rates: list[float]
    systems: dict[str, SystemResult]
    ttft_ratio: dict[str, float]
    ttft_ratio_by_rate: dict[str, list[float]]
    ttft_ratio_unloaded: dict[str, float]
    throughput_ratio: dict[str, float]


class ReplayBenchmark:
    """Replays arrivals on ours and the systems ``against`` it. Raises ConfigError for those that are no baselines."""

    def __init__(self, systems: Systems, against: Sequence[str], settings: ReplaySettings) -> None:
        check_baselines(against)
        self._systems = systems
        self._names = (*against, OURS)
        self._settings = settings

    async def run(self, every: Sequence[Prompt], prompts: Iterator[Prompt], progress: Progress) -> ReplayResult:
        """Replay ``prompts``, draws without end from ``every`` one that there is.

        Raises ConfigError where their documents do not outgrow the engines' KV cache, and what systems raise.
        """
        settings = self._settings
        first = list(islice(prompts, settings.requests))
        shuffled = random.Random(settings.seed).sample(every, len(every))  # noqa: S311 - a repeatable draw
        warming = [*shuffled, *islice(prompts, settings.warm_up)]
        async with AsyncExitStack() as running:
            systems = {name: await running.enter_async_context(self._systems.running(name)) for name in self._names}
            needed, kept = document_tokens(every), systems[OURS].cache_tokens
            if needed < OUTGROWN * kept:
                raise ConfigError(
                    f"the documents come to {needed} tokens, less than {OUTGROWN:g} times the {kept} that every engine "
                    "keeps: ask more questions, or give the engines less",
                    "kv_tokens",
                )
            cold = {}
            for name, system in systems.items():
                cold[name] = await one_by_one(system, first, f"{name}, cold", progress)
            for name, system in systems.items():
                prompts_for_it = _warm_up(name, warming, systems[OURS].cache_tokens)
                await one_by_one(system, prompts_for_it, f"{name}, warming up", progress)
            next_ones = list(islice(prompts, UNLOADED * settings.requests))
            unloaded = {}
            for name, system in systems.items():
                unloaded[name] = (await one_by_one(system, next_ones, f"{name}, one by one", progress)).measured()
            rates = settings.rates or tuple(_significant(load / _prefill_s(cold[OURS].came)) for load in LOADS)
            loaded: dict[str, list[Measured]] = {name: [] for name in systems}
            for number, rate in enumerate(rates):
                count = round(settings.requests * rate / rates[0])
                arrivals = poisson(prompts, rate, count, settings.seed)
                for name in list(systems)[:: -1 if number % 2 else 1]:
                    if _sustained(unloaded[name], loaded[name]) == number:
                        phase = await open_loop(systems[name], arrivals, f"{name} at {rate:g}/s", progress)
                        loaded[name].append(phase.measured(rate))
        results = {name: _result(cold[name].measured(), unloaded[name], loaded[name], rates) for name in systems}
        ratios = {name: ttft_ratios(results[name], results[OURS]) for name in self._names[:-1]}
        return ReplayResult(
            document_tokens=needed,
            cache_tokens=kept,
            memory_tokens=systems[OURS].memory_tokens,
            prompt_tokens=mean(prompt.token_count for prompt in (*first, *next_ones)),
            rates=list(rates),
            systems=results,
            ttft_ratio={name: over_all for name, (over_all, _) in ratios.items()},
            ttft_ratio_by_rate={name: each for name, (_, each) in ratios.items()},
            ttft_ratio_unloaded={name: _unloaded_ratio(results[name], results[OURS]) for name in ratios},
            throughput_ratio={name: results[OURS].throughput / results[name].throughput for name in ratios},
        )


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


def _prefill_s(cold: Sequence[Generation]) -> float:
    """Seconds that a prompt takes of which nothing is reused, from those of which some was."""
    computed = sum(one.prefill.prompt_tokens - one.prefill.cached_tokens for one in cold)
    tokens = mean(one.prefill.prompt_tokens for one in cold)
    return sum(one.ttft_ms for one in cold) / 1000 / computed * tokens


def _significant(rate: float) -> float:
    return float(f"{rate:.3g}")


def _sustained(unloaded: Measured, loaded: Sequence[Measured]) -> int:
    """How many measurements there are before the first whose mean TTFT is out of bounds."""
    for place, result in enumerate(loaded):
        if result.mean_ttft_ms > SUSTAINED * unloaded.mean_ttft_ms:
            return place
    return len(loaded)


def _result(cold: Measured, unloaded: Measured, loaded: list[Measured], rates: Sequence[float]) -> SystemResult:
    sustained = _sustained(unloaded, loaded)
    return SystemResult(
        cold=cold,
        unloaded=unloaded,
        loaded=loaded,
        sustained=sustained,
        throughput=rates[sustained - 1] if sustained else min(unloaded.served_per_s, rates[0]),
        beaten=sustained < len(loaded),
        most_served_per_s=max(result.served_per_s for result in (unloaded, *loaded)),
    )


def ttft_ratios(baseline: SystemResult, ours: SystemResult) -> tuple[float, list[float]]:
    """How many times lower ours has its mean TTFT, over all rates that both sustain and at each of them."""
    both = min(baseline.sustained, ours.sustained)
    pairs = [
        (theirs.mean_ttft_ms, mine.mean_ttft_ms)
        for theirs, mine in zip(baseline.loaded[:both], ours.loaded[:both], strict=True)
    ]
    if not pairs:
        return _unloaded_ratio(baseline, ours), []
    return sum(theirs for theirs, _ in pairs) / sum(mine for _, mine in pairs), [
        theirs / mine for theirs, mine in pairs
    ]


def _unloaded_ratio(baseline: SystemResult, ours: SystemResult) -> float:
    return baseline.unloaded.mean_ttft_ms / ours.unloaded.mean_ttft_ms
