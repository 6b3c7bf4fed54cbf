"""Replay: compares the stack with plain vLLM under load, on real questions, real retrieval and Poisson arrivals.

All systems (see `benchmarks.measuring.systems`) get the same prompts at the same times. ``ragtree`` is the stack; the
baselines are ``vllm`` without any reuse and ``vllm-prefix`` with vLLM's own prefix cache. The phases are:

1. Cold: the first prompts, one after another, with empty caches.
2. Warm-up: every prompt once, and some more. From then on, computed documents are ones that were evicted.
3. Unloaded: one request after another, the lowest possible rate.
4. A sweep of rates, lowest first. The systems take turns, in alternating order.

Limits: no HTTP; one engine per system; ratios depend on the model, the document lengths and the cache sizes.
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
"""A rate is sustained while mean TTFT is at most this many times the unloaded one (RAGCache, section 7)."""

UNLOADED = 2
"""How many times the first rate's requests measure the unloaded TTFT. All bounds depend on it."""

LOADS = (0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0, 11.2, 16.0)
"""Default rates to sweep: multiples of the rate that can be computed without any reuse."""

OUTGROWN = 3.0
"""How many times the documents must exceed the engines' KV cache; otherwise there is little to compare."""

FILLED = 3
"""How many times a warm-up fills vLLM's own cache."""


class ReplaySettings(msgspec.Struct, frozen=True):
    """How to replay: ``requests`` cold ones, all prompts once, ``warm_up`` more, then ``rates`` or ``LOADS``.

    Each rate runs for as long as ``requests`` of them take at the first rate. With fewer requests, the queue at a rate
    that is too high would be cut short.
    """

    requests: int
    warm_up: int
    seed: int
    rates: tuple[float, ...] = ()


class SystemResult(msgspec.Struct, frozen=True):
    """Results of a system: ``cold`` with empty caches, then warm ``unloaded`` and ``loaded``.

    ``loaded`` has the rates that the system sustains, and the first that it does not; ``sustained`` counts the former.
    ``throughput`` is the highest sustained rate in requests per second, or the unloaded throughput if there is none. It
    is a lower bound unless the system was ``beaten`` by a rate. ``most_served_per_s`` is the most it served at any
    rate.
    """

    cold: Measured
    unloaded: Measured
    loaded: list[Measured]
    sustained: int
    throughput: float
    beaten: bool
    most_served_per_s: float


class ReplayResult(msgspec.Struct, frozen=True):
    """Systems by name, and for each baseline how many times lower our mean TTFT and higher our throughput is.

    ``ttft_ratio`` is over all rates that both sustain (the last of them with a long queue), or unloaded if there are
    none; ``ttft_ratio_by_rate`` is per rate, ``ttft_ratio_unloaded`` without a queue. ``document_tokens`` counts the KV
    of all prompts' documents, equal prefixes once: what must be kept to compute nothing twice. ``cache_tokens`` is the
    size of an engine's KV cache, ``memory_tokens`` our room by tier.
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
    """Replays arrivals on our stack and the systems ``against`` it. Raises ConfigError for unknown baselines."""

    def __init__(self, systems: Systems, against: Sequence[str], settings: ReplaySettings) -> None:
        check_baselines(against)
        self._systems = systems
        self._names = (*against, OURS)
        self._settings = settings

    async def run(self, every: Sequence[Prompt], prompts: Iterator[Prompt], progress: Progress) -> ReplayResult:
        """Replay ``prompts``, an endless draw from ``every`` possible one.

        Raises ConfigError if the documents do not exceed the engines' KV cache enough, and what the systems raise.
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
                    f"the documents have {needed} tokens, less than {OUTGROWN:g} times the {kept} of an engine's KV "
                    "cache: use more questions, or a smaller cache",
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
    """Return the prompts that warm up a system.

    vLLM's own cache is LRU, so the last prompts, which fill it several times, leave the same content as all of them.
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
    """Estimate the seconds of a prompt without any reuse, from prompts with some."""
    computed = sum(one.prefill.prompt_tokens - one.prefill.cached_tokens for one in cold)
    tokens = mean(one.prefill.prompt_tokens for one in cold)
    return sum(one.ttft_ms for one in cold) / 1000 / computed * tokens


def _significant(rate: float) -> float:
    return float(f"{rate:.3g}")


def _sustained(unloaded: Measured, loaded: Sequence[Measured]) -> int:
    """Count the measurements before the first whose mean TTFT is out of bounds."""
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
    """Return how many times lower our mean TTFT is, over all rates that both sustain, and per rate."""
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
