"""Reordering: compares the cache-aware queue with first come, first served (a window of 0) under overload.

As in RAGCache, section 7.3, rates are a little above the sustainable one, so that a queue builds up. Two stacks with
caches of their own are warmed up with the same prompts, drawn with the paper's skew, and then get the same arrivals in
turns. Documents exceed what can be kept, so some requests hit and some do not.

Limits: at low load there is no queue, and nothing to gain.
"""

from contextlib import AsyncExitStack
from statistics import mean

import msgspec

from examine.measuring import Progress
from protocol.errors import ConfigError, InternalError
from ragtree_lab.measuring.phases import Measured, OpenLoop, one_by_one
from ragtree_lab.measuring.systems import System, Systems
from ragtree_lab.workloads.prompt_streams import Arrival, PromptStream, poisson


class ReorderSettings(msgspec.Struct, frozen=True):
    """How to overload: ``warm_up`` prompts, ``saturating`` ones all at once, then ``requests`` at each of ``loads``.

    Loads are multiples of the sustainable rate. ``window`` bounds reordering, as the queue takes it.
    """

    warm_up: int
    saturating: int
    requests: int
    loads: tuple[float, ...]
    window: int
    seed: int


class LoadRow(msgspec.Struct, frozen=True):
    """Both queue orders at ``load`` times the sustainable rate, and how many times lower TTFT is with reordering."""

    load: float
    first_come: Measured
    reordered: Measured
    ttft_ratio: float
    p99_ratio: float


class ReorderResult(msgspec.Struct, frozen=True):
    """One row per load; ``ttft_ratio`` is the ratio of mean TTFTs over all rows.

    ``sustainable_per_s`` is the rate that first come, first served completes while its queue is never empty: at a
    higher rate the queue grows without end. ``largest_overtake`` is the most often that any request was overtaken.
    ``document_tokens`` counts the KV of all prompts' documents, equal prefixes once. ``memory_tokens`` is the room of
    each stack.
    """

    window: int
    largest_overtake: int
    ttft_ratio: float
    sustainable_per_s: float
    reordered_saturated_per_s: float
    document_tokens: int
    memory_tokens: int
    prompt_tokens: float
    rows: list[LoadRow]


class ReorderBenchmark:
    """Loads two stacks, made by ``first_come`` and ``reordering``, that differ only in the queue's window."""

    def __init__(self, first_come: Systems, reordering: Systems, settings: ReorderSettings) -> None:
        self._first_come = first_come
        self._reordering = reordering
        self._settings = settings

    async def run(self, stream: PromptStream, progress: Progress) -> ReorderResult:
        """Measure with the prompts of ``stream``.

        Raises ConfigError if all its documents fit or it is too short, and what the systems raise.
        """
        settings = self._settings
        async with AsyncExitStack() as running:
            first_come = await running.enter_async_context(self._first_come.ours())
            reordering = await running.enter_async_context(self._reordering.ours())
            needed, kept = stream.document_tokens, sum(reordering.memory_tokens.values())
            if needed <= kept:
                raise ConfigError(
                    f"all {needed} document tokens fit into the {kept} that can be kept, so all requests would hit: "
                    "use a longer stream, or less memory",
                    "host_gib",
                )
            stacks = {"first come": first_come, "reordered": reordering}
            warming = stream.take(settings.warm_up)
            for name, system in stacks.items():
                await one_by_one(system, warming, f"{name}, warming up", progress)
            at_once = [Arrival(0.0, prompt) for prompt in stream.take(settings.saturating)]
            saturated = {}
            for name, system in stacks.items():
                phase = await OpenLoop(system, at_once).run(f"{name}, all at once", progress)
                saturated[name] = phase.measured().served_per_s
            rows = []
            for number, load in enumerate(settings.loads):
                rate = load * saturated["first come"]
                arrivals = poisson(stream.take(settings.requests), rate, settings.seed + number)
                measured = {}
                for name in list(stacks)[:: -1 if number % 2 else 1]:
                    phase = await OpenLoop(stacks[name], arrivals).run(f"{name} at {rate:.2g}/s", progress)
                    measured[name] = phase.measured(rate)
                rows.append(_row(load, measured["first come"], measured["reordered"]))
            overtake = await _largest_overtake(reordering)
        return ReorderResult(
            window=settings.window,
            largest_overtake=overtake,
            ttft_ratio=mean(row.first_come.mean_ttft_ms for row in rows)
            / mean(row.reordered.mean_ttft_ms for row in rows),
            sustainable_per_s=saturated["first come"],
            reordered_saturated_per_s=saturated["reordered"],
            document_tokens=needed,
            memory_tokens=kept,
            prompt_tokens=mean(prompt.token_count for prompt in warming),
            rows=rows,
        )


def _row(load: float, first_come: Measured, reordered: Measured) -> LoadRow:
    return LoadRow(
        load=load,
        first_come=first_come,
        reordered=reordered,
        ttft_ratio=first_come.mean_ttft_ms / reordered.mean_ttft_ms,
        p99_ratio=first_come.p99_ttft_ms / reordered.p99_ttft_ms,
    )


async def _largest_overtake(system: System) -> int:
    if system.stats is None:
        raise InternalError("the system does not report how often requests were overtaken")
    return (await system.stats()).largest_overtake
