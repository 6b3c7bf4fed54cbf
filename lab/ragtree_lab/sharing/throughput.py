"""Queries a second of two machines that read each other's KV, against two that keep theirs to themselves.

The ways to serve take turns on the same engines. Each turn begins with empty caches, which queries fill that are not
counted.
"""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import msgspec

from cachectl.settings import ControllerSettings
from examine.measuring import Progress
from examine.measuring.engines import Generation
from protocol.generation import Sampling
from protocol.prompts import Prompt
from ragtree_lab.measuring.local_stack import LocalStack
from ragtree_lab.sharing.load import Load
from ragtree_lab.sharing.machines import TimedEngine
from ragtree_lab.sharing.open_loop import Ask, arriving
from ragtree_lab.sharing.ways import WAYS, Stacks

_STEP = "measuring throughput"


class Point(msgspec.Struct, frozen=True):
    """What differs from measurement to measurement: documents in a prompt, and the controller's ``prepare_after_s``.

    Queries arrive ``rate`` times a second. Without a rate, clients ask one query after another.
    """

    top_k: int
    prepare_after_s: float | None
    rate: float | None = None


class Served(msgspec.Struct, frozen=True):
    """How one way served all its turns, but for the queries that filled the caches.

    A query's latency ends with its answer. ``token_hit_rate`` is the share of prompt tokens that were not computed,
    ``peer_rate`` the share that was read on the other machine. A KV generator computed ``generated_rate`` of them.
    ``asking_share`` is the share of all processors' time that clients and controllers took, which the engines lack.
    """

    queries_per_s: float
    mean_ttft_ms: float
    mean_latency_ms: float
    token_hit_rate: float
    peer_rate: float
    generated_rate: float
    asking_share: float


class Ratios(msgspec.Struct, frozen=True, kw_only=True):
    """Ratios of queries a second; None if one of both ways was not measured.

    ``generator_latency`` is the mean latency with a KV generator, as a share of that of machines that are alone;
    ``generator_latency_of_one`` as a share of that of one machine without a KV generator.
    """

    shared_over_alone: float | None
    shared_over_routed: float | None
    generator_over_alone: float | None
    generator_over_one: float | None
    generator_latency: float | None
    generator_latency_of_one: float | None


class Throughput(Ratios, frozen=True, kw_only=True):
    """How each way served at one point."""

    top_k: int
    prepare_after_s: float | None
    rate: float | None
    ways: dict[str, Served]


class _Turn(NamedTuple):
    """A turn's answers, the latency of each in milliseconds, and how long all took, also on this process's threads."""

    came: list[Generation]
    latencies_ms: list[float]
    seconds: float
    asking_s: float
    generated_tokens: int


class ThroughputTurns:
    """Measures a ``load`` in some of the ``WAYS``, at each of ``points``."""

    def __init__(
        self, controller: ControllerSettings, profiles: Path, load: Load, ways: Sequence[str], points: Sequence[Point]
    ) -> None:
        self._controller = controller
        self._profiles = profiles
        self._load = load
        self._ways = ways
        self._points = points

    async def run(self, engines: Mapping[str, TimedEngine], seed: int, progress: Progress) -> list[Throughput]:
        """How each way serves on two machines with one of the ``engines`` each. Raises what the engines raise."""
        stacks = Stacks(engines, self._profiles)
        a_point = self._load.turns * len(self._ways)
        total = a_point * len(self._points)
        rows = []
        for number, point in enumerate(self._points):
            turns: dict[str, list[_Turn]] = {way: [] for way in self._ways}
            prompts = self._load.prompts(point.top_k, seed)
            settings = self._controller.model_copy(update={"prepare_after_s": point.prepare_after_s})
            order = list(self._ways)
            for turn in range(self._load.turns):
                filling, counted = (list(islice(prompts, self._load.queries)) for _ in range(2))
                for place, way in enumerate(order):
                    progress(_STEP, number * a_point + turn * len(order) + place, total)
                    namespace = f"{number} {turn} {way}"
                    async with stacks.serving(WAYS[way], settings) as serving:
                        await self._turn(serving, filling, namespace, None)
                        turns[way].append(await self._turn(serving, counted, namespace, point.rate))
                order.append(order.pop(0))
            rows.append(_compared(point, {way: _served(turns[way]) for way in self._ways}))
        progress(_STEP, total, total)
        return rows

    async def _turn(
        self, stacks: Sequence[LocalStack], prompts: Sequence[Prompt], namespace: str, rate: float | None
    ) -> _Turn:
        """Ask until there are no prompts left: at a ``rate`` of so many a second, or else by all clients."""
        balanced, sampling = cycle(stacks), Sampling(self._load.answer_tokens)
        asks = [partial(next(balanced).answer, prompt, namespace, sampling) for prompt in prompts]
        before = await _generated_tokens(stacks)
        began, worked = time.perf_counter(), time.process_time()
        came = await (_by_clients(asks, self._load.clients) if rate is None else _at_rate(asks, rate))
        seconds, asking_s = time.perf_counter() - began, time.process_time() - worked
        for stack in stacks:
            # Background work must not slow what comes next down.
            await stack.settle()
        took, latencies_ms = [answer for answer, _ in came], [latency_ms for _, latency_ms in came]
        return _Turn(took, latencies_ms, seconds, asking_s, await _generated_tokens(stacks) - before)


async def _by_clients(asks: Sequence[Ask], clients: int) -> list[tuple[Generation, float]]:
    """Answers with their latencies in milliseconds, to clients that each ask one query after another."""
    left = iter(asks)
    came: list[tuple[Generation, float]] = []

    async def client() -> None:
        for ask in left:
            asked = time.perf_counter()
            answer = await ask()
            came.append((answer, 1000 * (time.perf_counter() - asked)))

    await asyncio.gather(*(client() for _ in range(clients)))
    return came


async def _at_rate(asks: Sequence[Ask], rate: float) -> list[tuple[Generation, float]]:
    """The same, with ``rate`` queries a second, whatever becomes of earlier ones. Raises ValueError if one fails."""
    came = [arrived for arrived in await arriving(asks, rate) if arrived is not None]
    if len(came) < len(asks):
        raise ValueError(f"{len(asks) - len(came)} of {len(asks)} queries were not answered")
    return [(arrived.answer, arrived.latency_ms) for arrived in came]


def _served(turns: Sequence[_Turn]) -> Served:
    came = [answer for turn in turns for answer in turn.came]
    tokens = sum(answer.prefill.prompt_tokens for answer in came)
    seconds = sum(turn.seconds for turn in turns)
    return Served(
        queries_per_s=len(came) / seconds,
        mean_ttft_ms=mean(answer.ttft_ms for answer in came),
        mean_latency_ms=mean(latency for turn in turns for latency in turn.latencies_ms),
        token_hit_rate=sum(answer.prefill.cached_tokens for answer in came) / tokens,
        peer_rate=sum(read.tokens for answer in came for read in answer.prefill.peer_reads) / tokens,
        generated_rate=sum(turn.generated_tokens for turn in turns) / tokens,
        asking_share=sum(turn.asking_s for turn in turns) / seconds / len(os.sched_getaffinity(0)),
    )


def _compared(point: Point, ways: dict[str, Served]) -> Throughput:
    rates = {way: served.queries_per_s for way, served in ways.items()}
    latencies = {way: served.mean_latency_ms for way, served in ways.items()}
    return Throughput(
        top_k=point.top_k,
        prepare_after_s=point.prepare_after_s,
        rate=point.rate,
        shared_over_alone=_ratio(rates, "shared", "alone"),
        shared_over_routed=_ratio(rates, "shared", "routed"),
        generator_over_alone=_ratio(rates, "generator", "alone"),
        generator_over_one=_ratio(rates, "generator", "one"),
        generator_latency=_ratio(latencies, "generator", "alone"),
        generator_latency_of_one=_ratio(latencies, "generator", "one"),
        ways=ways,
    )


def _ratio(measured: Mapping[str, float], way: str, baseline: str) -> float | None:
    return measured[way] / measured[baseline] if way in measured and baseline in measured else None


async def _generated_tokens(stacks: Sequence[LocalStack]) -> int:
    return sum([(await stack.stats()).generated_tokens for stack in stacks])
