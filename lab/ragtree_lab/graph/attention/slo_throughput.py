"""Throughput at the SLO: the highest rate of arrivals at which first tokens still come in time.

As DepCache measures throughput (section 6): prompts arrive as a Poisson process, the SLO is the time to first token of
an idle system, and first tokens have to come within five times that. The SLO is that of plain vLLM with its prefix
cache, over every path in full. It holds for all ways, so a faster way gets no tighter bound.

Each way starts below the rate that it has with one prompt after another. Rates go up in equal steps until one is not
sustained, or down if the first one is not, until one is. A prompt that is asked again is found whole in the caches. So
each rate has prompts of its own, the same ones for all ways.

Limits: few prompts show bursts, and whether prompts pile up, but not the long queues of a long run. These exceed the
bound first where it is a few times the time that a prompt takes, so what is found is too high for slow ways. A way that
sustains all rates may sustain more.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from examine.measuring import Progress
from ragtree_lab.graph.attention.prompt_groups import PromptGroup
from ragtree_lab.graph.attention.results import Slo, TriedRate
from ragtree_lab.graph.attention.ways import OURS, PREFIX_CACHE, Ask
from ragtree_lab.graph.facts import FactsPrompt
from ragtree_lab.workloads.prompt_streams import arrival_times

COMPARED = (OURS, "vllm", PREFIX_CACHE)
"""Ways whose throughput is measured. The prefix cache comes last: prompts of ``vllm`` take its room."""

_BOUND = 5.0
"""A first token may take as many times the SLO."""

_LEAST_IN_TIME = 0.9
"""The least share of a sustained rate's first tokens that come within the bound."""

_MOST_DRAIN = 0.1
"""Prompts do not pile up if all have their first token so soon after the last arrival.

It is a share of the time of all arrivals. The last prompt's own time to first token comes on top of that.
"""

_SEED = 1


class Ladder(NamedTuple):
    """The rates to try, and how many prompts each has.

    The first rate is a share of a way's rate with one prompt after another. Each further one is ``step`` times the one
    below. ``idle`` prompts say before how fast idle systems are.
    """

    idle: int = 8
    first: float = 0.6
    step: float = 1.2
    least_rates: int = 5
    most_rates: int = 8
    least_prompts: int = 16
    most_prompts: int = 20

    def prompts(self, spare: int) -> int:
        """The prompts of one rate if there are ``spare`` ones for all; 0 if these are too few."""
        each = min(self.most_prompts, spare // self.least_rates)
        return each if each >= self.least_prompts else 0


class SloThroughput:
    """Finds the highest sustained rate of each way. ``progress`` is called with (step, done, total)."""

    def __init__(self, ladder: Ladder, progress: Progress) -> None:
        self._ladder = ladder
        self._progress = progress

    @property
    def least_prompts(self) -> int:
        """The fewest prompts that can be measured with."""
        return self._ladder.idle + self._ladder.least_rates * self._ladder.least_prompts

    @property
    def idle_prompts(self) -> int:
        """How many of the prompts idle systems are asked."""
        return self._ladder.idle

    def taken(self, spare: int) -> int:
        """How many of ``spare`` prompts a measurement needs, at the most; 0 if these are too few."""
        ladder = self._ladder
        each = ladder.prompts(spare - ladder.idle)
        return ladder.idle + each * min(ladder.most_rates, (spare - ladder.idle) // each) if each else 0

    async def measure(
        self,
        ways: Mapping[str, Ask],
        idle_ms: Mapping[str, float],
        group: PromptGroup,
        prompts: Sequence[FactsPrompt],
    ) -> Slo:
        """Try rates of ``COMPARED`` with ``prompts`` of a group, which no way was asked.

        They are as many as ``taken`` says, without the ``idle_prompts``. ``idle_ms`` are the times to first token of
        idle systems over such prompts. Raises what the engines raise.
        """
        each = self._ladder.prompts(len(prompts))
        parts = [prompts[begin : begin + each] for begin in range(0, len(prompts) - each + 1, each)]
        slo_ms = idle_ms[PREFIX_CACHE]
        rates: dict[str, list[TriedRate]] = {}
        for way in COMPARED:
            load = _Load(way, ways[way], _BOUND * slo_ms, idle_ms[way], self._progress)
            rates[way] = await self._try(load, 1000 * self._ladder.first / idle_ms[way], parts)
        return Slo(group.set, group.tokens, each, slo_ms, _BOUND * slo_ms, rates)

    async def _try(self, load: "_Load", rate: float, parts: Sequence[Sequence[FactsPrompt]]) -> list[TriedRate]:
        """Try rates from the first one on, with one part each, up to one that is sustained beside one that is not."""
        tried: list[TriedRate] = []
        for prompts in parts:
            tried.append(await load.at(rate, prompts))
            if tried[-1].sustained is not tried[0].sustained:
                break
            rate = rate * self._ladder.step if tried[0].sustained else rate / self._ladder.step
        return tried


def sustained_rates(slo: Slo) -> dict[str, float]:
    """The highest sustained rate by way, in prompts a second, of the ways that sustain any."""
    sustained = {way: [one.rate for one in tried if one.sustained] for way, tried in slo.rates.items()}
    return {way: max(rates) for way, rates in sustained.items() if rates}


class _Load:
    """Prompts that arrive at one way, whether or not earlier ones have their first token."""

    def __init__(self, way: str, ask: Ask, bound_ms: float, idle_ttft_ms: float, progress: Progress) -> None:
        self._way = way
        self._ask = ask
        self._bound_s = bound_ms / 1000
        self._idle_s = idle_ttft_ms / 1000
        self._progress = progress

    async def at(self, rate: float, prompts: Sequence[FactsPrompt]) -> TriedRate:
        """Let ``prompts`` arrive at ``rate`` a second, and wait until all have their first token."""
        clock = asyncio.get_running_loop().time
        began = clock()
        came_s: list[float] = []

        async def arrive(prompt: FactsPrompt, at_s: float) -> float:
            await asyncio.sleep(began + at_s - clock())
            await self._ask(prompt)
            came_s.append(clock() - began)
            self._progress(f"{self._way} at {rate:.2g}/s", len(came_s), len(prompts))
            return came_s[-1] - at_s

        times_s = arrival_times(len(prompts), rate, _SEED)
        waits_s = await asyncio.gather(*(arrive(*arrival) for arrival in zip(prompts, times_s, strict=True)))
        in_time = sum(wait_s <= self._bound_s for wait_s in waits_s) / len(prompts)
        drain_s = max(came_s) - times_s[-1]
        drains = drain_s <= self._idle_s + _MOST_DRAIN * times_s[-1]
        return TriedRate(rate, in_time, drain_s, sustained=drains and in_time >= _LEAST_IN_TIME)
