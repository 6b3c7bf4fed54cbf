"""Replay: compares the stack with plain vLLM on the same prompts at the same times.

``ragtree`` is the stack; the baselines are in `ragtree_lab.measuring.baselines`, each in vLLM's default settings and in
those of our engine. All get the same prompts of one stream, and answers have a fixed number of tokens. The phases are:

1. Warm-up with a stretch of the stream whose documents fill our tiers. A baseline gets as much of its end as fills its
   cache twice.
2. Unloaded: each prompt goes to one system after another.
3. At once: many requests at the same time. A baseline goes on in the setting that has the lower mean TTFT here.
4. Rates: the highest one that each system sustains is searched, in steps of 14 %. Ours is also measured at each rate
   that a baseline sustains.

Limits: no HTTP; one engine per system; ratios depend on the model, the document lengths and the cache sizes.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import msgspec

from examine.measuring import Progress
from protocol.errors import ConfigError
from protocol.generation import Sampling
from protocol.plans import DocumentOrder, Reuse
from protocol.tiers import Tier
from ragtree_lab.measuring.baselines import Steps, check_baselines
from ragtree_lab.measuring.phases import OpenLoop, Phase, Served, answered, one_by_one
from ragtree_lab.measuring.systems import OURS_EXACT, System, Systems
from ragtree_lab.replay.outlook import Outlook
from ragtree_lab.replay.record import RAGTREE, Record, Variant
from ragtree_lab.replay.report import Surroundings, report
from ragtree_lab.replay.results import ReplayResult
from ragtree_lab.replay.sustained_rate import RateSearch, rate_at, step_below
from ragtree_lab.replay.warm_up import warm_up, warm_up_of
from ragtree_lab.workloads.prompt_streams import Arrival, PromptStream

OUTGROWN = 2.0
"""How many times the stream's documents must exceed all our tiers together; otherwise there is little to compare."""

_OUTGROWN_WELL = 1.05 * OUTGROWN
"""What a smaller disk is made for: its room is in whole pages."""

_RATES = 12
"""Different rates that a search may need: so many times, its share of the stream's prompts must suffice."""


class ReplaySettings(msgspec.Struct, frozen=True):
    """How much to replay: at most ``warm_up`` prompts, ``unloaded`` ones, and ``at_once`` at the same time.

    Each rate lasts for ``requests`` requests or ``seconds``, whichever is longer; for fewer than ``seconds`` if the
    stream has too few prompts. Answers have ``answer_tokens``. The search for sustained rates tries every ``stride``-th
    rate, and baselines run in each of ``baseline_steps``. Our system arranges documents in ``order``, and uses KV as
    ``reuse`` says. If that is not exact, our system without composing is one of the baselines.
    """

    warm_up: int
    unloaded: int
    at_once: int
    requests: int
    seconds: float
    answer_tokens: int
    stride: int = 1
    baseline_steps: tuple[Steps, ...] = tuple(Steps)
    order: DocumentOrder = DocumentOrder.RETRIEVAL
    reuse: Reuse = Reuse.EXACT

    def requests_at(self, rate: float, left: int | None) -> int:
        """The requests of a phase at this rate, if the stream had ``left`` prompts before the first rate."""
        wanted = math.ceil(self.seconds * rate)
        return max(self.requests, wanted if left is None else min(wanted, left // _RATES))


class ReplayBenchmark:
    """Replays ``stream`` on our stack and the systems ``against`` it. Raises ConfigError for unknown baselines."""

    def __init__(
        self,
        systems: Systems,
        against: Sequence[str],
        stream: PromptStream,
        settings: ReplaySettings,
        progress: Progress,
    ) -> None:
        check_baselines(against)
        self._systems = systems
        self._plain = tuple(against)
        composes = settings.reuse is not Reuse.EXACT
        self._baselines = (*against, OURS_EXACT) if composes else self._plain
        self._stream = stream
        self._settings = settings
        self._progress = progress
        self._sampling = Sampling(settings.answer_tokens, ignore_eos=True)
        self._record = Record()
        self._arrivals: dict[int, list[Arrival]] = {}
        self._left_for_rates: int | None = None
        self._disk_share = 1.0
        self._surroundings = Surroundings(stream.document_tokens, {}, 0, 0, settings.answer_tokens)

    @property
    def has_results(self) -> bool:
        """Whether any comparison has been measured."""
        return RAGTREE in self._record.at_once

    def result(self, *, complete: bool) -> ReplayResult:
        """What has been measured so far."""
        return report(self._record, self._baselines, self._surroundings, complete=complete)

    async def run(self) -> None:
        """Measure everything.

        Our disk tier is smaller than configured if otherwise the stream's documents would not exceed our tiers enough.
        Raises ConfigError if they do not even without it or the stream is too short, and what the systems raise.
        """
        async with AsyncExitStack() as running:
            ours = await self._start_ours(running)
            self._check(ours)
            systems = {RAGTREE: ours}
            for name in self._plain:
                for steps in self._settings.baseline_steps:
                    plain = self._systems.running(name, steps, ours.ram_tokens)
                    systems[Variant(name, steps)] = await running.enter_async_context(plain)
            if OURS_EXACT in self._baselines:
                exact = self._systems.ours(self._settings.order, self._disk_share)
                systems[Variant(OURS_EXACT)] = await running.enter_async_context(exact)
            await self._warm_up(systems)
            await self._measure_unloaded(systems)
            await self._measure_at_once(systems)
            await self._measure_rates(systems)

    async def _start_ours(self, running: AsyncExitStack) -> System:
        async with AsyncExitStack() as trial:
            ours = await trial.enter_async_context(self._ours())
            disk = ours.memory_tokens.get(Tier.DISK, 0)
            most = self._stream.document_tokens / _OUTGROWN_WELL - (sum(ours.memory_tokens.values()) - disk)
            if disk <= most or most <= 0:
                running.push_async_exit(trial.pop_all())
                return ours
        self._disk_share = most / disk
        return await running.enter_async_context(self._ours())

    def _ours(self) -> AbstractAsyncContextManager[System]:
        return self._systems.ours(self._settings.order, self._disk_share, self._settings.reuse)

    def _check(self, ours: System) -> None:
        needed = self._stream.document_tokens
        self._surroundings = Surroundings(
            needed, ours.memory_tokens, ours.cache_tokens, ours.ram_tokens, self._settings.answer_tokens
        )
        room = self._surroundings.room
        if needed < OUTGROWN * room:
            raise ConfigError(
                f"the stream's documents have {needed} tokens of KV, less than {OUTGROWN:g} times the {room} that all "
                "tiers hold together: use a longer stream, or less memory (--host-gib, --disk-gib)",
                "stream",
            )

    async def _warm_up(self, systems: Mapping[Variant, System]) -> None:
        warming = warm_up(self._stream, self._surroundings.room, self._settings.warm_up)
        for prompt in warming:
            self._record.paths.warm_up(prompt)
        for variant, system in systems.items():
            prompts = warm_up_of(variant.name, warming, system.cache_tokens or systems[RAGTREE].cache_tokens)
            await one_by_one(system, prompts, f"{variant}, warming up", self._progress)

    async def _measure_unloaded(self, systems: Mapping[Variant, System]) -> None:
        prompts = self._stream.take(self._settings.unloaded)
        served: dict[Variant, list[Served]] = {variant: [] for variant in systems}
        took_s = dict.fromkeys(systems, 0.0)
        clock = asyncio.get_running_loop().time
        turns = list(systems.items())
        for done, prompt in enumerate(prompts, start=1):
            for variant, system in turns:
                # As if its answers had followed each other.
                one = await answered(system, prompt, self._sampling, clock() - took_s[variant])
                took_s[variant] = one.ended_s
                served[variant].append(one)
                # Background work must not slow the next system down.
                await system.settle()
            turns.append(turns.pop(0))
            self._record.paths.add(prompt)
            self._progress("one by one", done, len(prompts))
        for variant, came in served.items():
            self._record.unloaded[variant] = Phase(came, len(prompts), came[-1].at_s).measured()

    async def _measure_at_once(self, systems: Mapping[Variant, System]) -> None:
        at_once = [Arrival(0.0, prompt) for prompt in self._stream.take(self._settings.at_once)]
        # Ours comes last: with its results, all there is to compare is there.
        for variant in sorted(systems, key=lambda variant: variant == RAGTREE):
            phase = await self._phase(variant, systems[variant], at_once, f"{variant}, all at once", self._progress)
            self._record.at_once[variant] = phase.measured()

    async def _measure_rates(self, systems: Mapping[Variant, System]) -> None:
        ours = self._search(RAGTREE)
        compared = [variant for name in self._baselines if (variant := self._record.better(name)) is not None]
        self._left_for_rates = self._stream.left
        rate_s = {variant: self._first_rate_s(variant) for variant in (*compared, RAGTREE)}
        outlook = Outlook(rate_s, self._progress, asyncio.get_running_loop().time)
        for variant in compared:
            search = self._search(variant)
            while (step := search.next) is not None:
                sustained = await self._measure_rate(variant, systems[variant], step, outlook)
                search.add(step, sustained)
                if sustained and step * self._settings.stride not in self._record.loaded.get(RAGTREE, {}):
                    ours.add(step, await self._measure_rate(RAGTREE, systems[RAGTREE], step, outlook))
            outlook.found(variant)
        while (step := ours.next) is not None:
            ours.add(step, await self._measure_rate(RAGTREE, systems[RAGTREE], step, outlook))
        outlook.found(RAGTREE)

    def _search(self, variant: Variant) -> RateSearch:
        return RateSearch(step_below(self._record.at_once[variant].served_per_s) // self._settings.stride)

    def _first_rate_s(self, variant: Variant) -> float:
        """How long the first rate of a search lasts, in seconds."""
        rate = self._record.at_once[variant].served_per_s
        return self._settings.requests_at(rate, self._left_for_rates) / rate

    async def _measure_rate(self, variant: Variant, system: System, number: int, outlook: Outlook) -> bool:
        """Measure a rate, by its number of strides; whether it is sustained."""
        step = number * self._settings.stride
        rate, rule = rate_at(step), self._record.rule(variant)
        if step not in self._arrivals:
            count = self._settings.requests_at(rate, self._left_for_rates)
            self._arrivals[step] = self._stream.arrivals(rate, count)
        outlook.begin()
        phase = await self._phase(
            variant,
            system,
            self._arrivals[step],
            f"{variant} at {rate:g}/s",
            outlook.progress,
            rule.most_mean_ttft_ms,
        )
        outlook.end(variant)
        measured = phase.measured(rate, rule.longest_answer_s)
        self._record.loaded.setdefault(variant, {})[step] = measured
        return rule.holds(measured)

    async def _phase(
        self,
        variant: Variant,
        system: System,
        arrivals: Sequence[Arrival],
        step: str,
        progress: Progress,
        most_ms: float = math.inf,
    ) -> Phase:
        phase = await OpenLoop(system, arrivals, self._sampling, most_ms).run(step, progress)
        if variant == RAGTREE:
            for arrival in arrivals[: len(phase.served)]:
                self._record.paths.add(arrival.prompt)
        return phase
