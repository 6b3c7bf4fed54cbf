"""Runs prompts through a system: one after another, or at given arrival times."""

import asyncio
import time
from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

import msgspec

from benchmarks.measuring.engines import Generation
from benchmarks.measuring.progress import Progress
from benchmarks.measuring.statistics import percentile
from benchmarks.measuring.systems import System
from benchmarks.workloads.retrieved_prompts import Arrival
from protocol.prompts import Prompt
from protocol.tiers import Tier


class Measured(msgspec.Struct, frozen=True):
    """Results of a system's requests: TTFT in milliseconds, and the share of prompt tokens not computed.

    ``rate`` is in requests per second; None if requests came one after another or all at once. ``served_per_s`` is all
    requests over the time from the first arrival to the last first token.
    """

    rate: float | None
    requests: int
    served_per_s: float
    mean_ttft_ms: float
    p50_ttft_ms: float
    p99_ttft_ms: float
    token_hit_rate: float
    tokens: dict[str, int]


class Phase(NamedTuple):
    """The generations of a phase, and the seconds from the first arrival to the last token."""

    came: list[Generation]
    seconds: float

    def measured(self, rate: float | None = None) -> Measured:
        """Return the phase's results; ``rate`` is its arrival rate."""
        times = [one.ttft_ms for one in self.came]
        prompt_tokens = sum(one.prefill.prompt_tokens for one in self.came)
        cached = sum(one.prefill.cached_tokens for one in self.came)
        tokens = {str(tier): sum(one.prefill.loaded.get(tier, 0) for one in self.came) for tier in Tier}
        return Measured(
            rate=rate,
            requests=len(self.came),
            served_per_s=len(self.came) / self.seconds,
            mean_ttft_ms=mean(times),
            p50_ttft_ms=percentile(times, 50),
            p99_ttft_ms=percentile(times, 99),
            token_hit_rate=cached / prompt_tokens,
            tokens={**tokens, "computed": prompt_tokens - cached},
        )


async def one_by_one(system: System, prompts: Sequence[Prompt], step: str, progress: Progress) -> Phase:
    """Send each prompt after the previous one is answered."""
    came = []
    began = time.perf_counter()
    for done, prompt in enumerate(prompts, start=1):
        came.append(await system.answer(prompt))
        progress(step, done, len(prompts))
    seconds = time.perf_counter() - began
    await system.settle()
    return Phase(came, seconds)


async def open_loop(system: System, arrivals: Sequence[Arrival], step: str, progress: Progress) -> Phase:
    """Send each prompt at its arrival time, whether or not earlier ones are answered."""
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
    # Background work must not slow the next system down.
    await system.settle()
    return Phase([task.result() for task in sent], seconds)
