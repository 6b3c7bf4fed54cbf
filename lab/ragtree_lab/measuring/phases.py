"""Runs prompts through a system: one after another, or at given arrival times."""

import asyncio
import math
from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

import msgspec

from examine.measuring import Progress
from examine.measuring.engines import Generation
from examine.measuring.statistics import percentile
from protocol.generation import Sampling
from protocol.prompts import Prompt
from protocol.tiers import Tier
from ragtree_lab.measuring.systems import FIRST_TOKEN, System
from ragtree_lab.workloads.prompt_streams import Arrival

COMPOSED = "composed"
"""The origin of composed tokens among those of ``Measured.tokens``."""


class Measured(msgspec.Struct, frozen=True):
    """Results of a system's requests: TTFT in milliseconds, and the share of prompt tokens not computed.

    TTFT counts from the scheduled arrival. ``rate`` is in requests per second; None if requests came one after another
    or all at once. ``served_per_s`` is all answers over the time from the first arrival to the end of the last answer.
    ``requests`` were answered of ``offered``; those missing were not sent, because the rate was already too high.
    ``answered_in_time`` is the share of the offered ones whose answer ended with the arrivals, or as long after the
    last arrival as a single answer may take. ``tokens`` counts prompt tokens by the tier that they came from, those
    composed out of KV that was computed behind other documents, and those computed.
    """

    rate: float | None
    requests: int
    offered: int
    answered_in_time: float
    served_per_s: float
    mean_ttft_ms: float
    p50_ttft_ms: float
    p99_ttft_ms: float
    mean_answer_ms: float
    token_hit_rate: float
    tokens: dict[str, int]


class Served(NamedTuple):
    """A request's answer, its TTFT from the scheduled arrival, and its arrival and end in the phase's seconds."""

    came: Generation
    ttft_ms: float
    at_s: float
    ended_s: float


class Phase(NamedTuple):
    """The served requests of a phase, in order of arrival, of ``offered`` in all.

    ``last_s`` is the last arrival, in seconds from the first one.
    """

    served: list[Served]
    offered: int
    last_s: float

    def measured(self, rate: float | None = None, answer_s: float = math.inf) -> Measured:
        """Return the phase's results. ``rate`` is its arrival rate, ``answer_s`` how long a single answer may take."""
        times = [one.ttft_ms for one in self.served]
        prefills = [one.came.prefill for one in self.served]
        prompt_tokens = sum(prefill.prompt_tokens for prefill in prefills)
        computed = sum(prefill.computed_tokens for prefill in prefills)
        composed = sum(prefill.composed_tokens for prefill in prefills)
        tokens = {str(tier): sum(prefill.loaded.get(tier, 0) for prefill in prefills) for tier in Tier}
        seconds = max(one.ended_s for one in self.served) - self.served[0].at_s
        return Measured(
            rate=rate,
            requests=len(self.served),
            offered=self.offered,
            answered_in_time=sum(one.ended_s <= self.last_s + answer_s for one in self.served) / self.offered,
            served_per_s=len(self.served) / seconds,
            mean_ttft_ms=mean(times),
            p50_ttft_ms=percentile(times, 50),
            p99_ttft_ms=percentile(times, 99),
            mean_answer_ms=mean((one.ended_s - one.at_s) * 1000 for one in self.served),
            token_hit_rate=1 - computed / prompt_tokens,
            tokens={**tokens, COMPOSED: composed, "computed": computed},
        )


async def one_by_one(
    system: System, prompts: Sequence[Prompt], step: str, progress: Progress, sampling: Sampling = FIRST_TOKEN
) -> Phase:
    """Send each prompt after the previous one is answered."""
    served = []
    began = asyncio.get_running_loop().time()
    for done, prompt in enumerate(prompts, start=1):
        served.append(await answered(system, prompt, sampling, began))
        progress(step, done, len(prompts))
    await system.settle()
    return Phase(served, len(prompts), served[-1].at_s if served else 0.0)


async def answered(system: System, prompt: Prompt, sampling: Sampling, began: float) -> Served:
    """Send a prompt now, and wait for the end of its answer. ``began`` is the phase's start by the loop's clock."""
    clock = asyncio.get_running_loop().time
    sent = clock()
    came = await system.answer(prompt, sampling)
    return Served(came, came.ttft_ms, sent - began, clock() - began)


class OpenLoop:
    """Sends each prompt at its arrival time, whether or not earlier ones are answered.

    Once the mean TTFT of all arrivals is certain to exceed ``most_mean_ttft_ms``, no more are sent.
    """

    def __init__(
        self,
        system: System,
        arrivals: Sequence[Arrival],
        sampling: Sampling = FIRST_TOKEN,
        most_mean_ttft_ms: float = math.inf,
    ) -> None:
        self._system = system
        self._arrivals = arrivals
        self._sampling = sampling
        self._most_ms = most_mean_ttft_ms * len(arrivals)
        self._waited_ms = 0.0
        self._done = 0

    async def run(self, step: str, progress: Progress) -> Phase:
        """Send all, and wait for the answers and the system's background work. Raises what the system raises."""
        began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            sent = [group.create_task(self._send(arrival, began, step, progress)) for arrival in self._arrivals]
        # Background work must not slow the next system down.
        await self._system.settle()
        served = [one for task in sent if (one := task.result()) is not None]
        return Phase(served, len(self._arrivals), self._arrivals[-1].at_s - self._arrivals[0].at_s)

    async def _send(self, arrival: Arrival, began: float, step: str, progress: Progress) -> Served | None:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(began + arrival.at_s - clock())
        if self._waited_ms > self._most_ms:
            return None
        late_ms = (clock() - began - arrival.at_s) * 1000
        came = await self._system.answer(arrival.prompt, self._sampling)
        # The phase begins with its first arrival.
        first_s = self._arrivals[0].at_s
        served = Served(came, late_ms + came.ttft_ms, arrival.at_s - first_s, clock() - began - first_s)
        self._waited_ms += served.ttft_ms
        self._done += 1
        progress(step, self._done, len(self._arrivals))
        return served
