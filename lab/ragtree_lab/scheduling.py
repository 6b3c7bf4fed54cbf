"""Scheduling: the time of the controller's decisions on one request, by the size of the knowledge tree.

The scheduler, tree, policy and queue are real; no model runs. The tree is full, so each request's documents evict
others from two tiers, and other requests are queued. The baseline is the smallest tree: decisions should not get slower
as the tree grows.

Limits: it excludes messages between processes and the event loop.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING

import msgspec

from cachectl.nodes.node import PathDocument
from cachectl.policies import create_policy
from cachectl.policies.lookahead import Lookahead
from cachectl.runtime.live_controller import spare_full_collections
from cachectl.scheduling import speculation
from cachectl.scheduling.queue import SLACK
from cachectl.scheduling.request import Request
from cachectl.scheduling.scheduler import Scheduler
from cachectl.tiers.location import Capacities, KvStorage
from cachectl.tree import knowledge_tree as tree
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.load_or_recompute import TreeCosts
from examine.measuring import Progress
from examine.measuring.statistics import percentile
from protocol.plans import SpeculationDecision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cachectl.costs.device_profile import DeviceProfile

TOP_K = 2
STAGES = 4
DOCUMENT_TOKENS = 512
QUESTION_TOKENS = 32
GPU_SHARE = 0.1
RUNNING = 8
WAITING = 32
SKEW = 0.9
COMPANIONS = 6
_YARDSTICK_STEPS = 2000


class SchedulingRow(msgspec.Struct, frozen=True):
    """Microseconds of processor time for all decisions on one request, with a tree of ``nodes`` nodes.

    The ``wall_`` figures are wall-clock time, including other processes.

    The decisions are: one on speculation for each of 4 search stages, routing and queueing by cached prefix, choosing
    the next request, admitting it (match, update, evict, swap out, reserve) and completing it.
    """

    nodes: int
    requests: int
    p50_us: float
    p99_us: float
    max_us: float
    wall_p50_us: float
    wall_p99_us: float
    evictions: int
    hit_rate: float


class SchedulingResult(msgspec.Struct, frozen=True):
    """All rows, and the results of the largest tree again; ``p50_ratio`` is its median over the smallest tree's.

    ``compiled`` tells whether the decisions ran compiled (scripts/compile) or as Python. ``machine_p99_over_p50`` is
    the spread of constant work on this machine: the spread of requests cannot be lower.
    """

    policy: str
    compiled: bool
    p50_us: float
    p99_us: float
    p50_ratio: float
    machine_p99_over_p50: float
    by_nodes: dict[str, SchedulingRow]


class SchedulingBenchmark:
    """Keeps one scheduler of each size busy, in turn, so that the machine's noise affects all alike.

    The garbage collector is configured as in the controller's process.
    """

    def __init__(self, policy: str, device: DeviceProfile, seed: int) -> None:
        self._policy = policy
        self._device = device
        self._seed = seed

    def run(self, sizes: list[int], requests: int, progress: Progress) -> SchedulingResult:
        """Measure ``requests`` on a tree of each size. ``progress`` is called with (step, done, total)."""
        spare_full_collections()
        loads = {}
        for nodes in sizes:
            load = loads[nodes] = _Load(self._policy, self._device, nodes, Random(self._seed))  # noqa: S311
            load.fill(partial(progress, f"filling a tree of {nodes:,} nodes"))
        chunk = max(1, requests // 20)
        yardstick: list[float] = []
        for done in range(0, requests, chunk):
            for load in loads.values():
                load.measure(min(chunk, requests - done))
            yardstick += [_constant_work_us() for _ in range(min(chunk, requests - done))]
            progress("measuring", min(done + chunk, requests), requests)
        rows = {str(nodes): load.row() for nodes, load in loads.items()}
        largest, smallest = rows[str(max(sizes))], rows[str(min(sizes))]
        return SchedulingResult(
            policy=self._policy,
            compiled=not tree.__file__.endswith(".py"),
            p50_us=largest.p50_us,
            p99_us=largest.p99_us,
            p50_ratio=largest.p50_us / smallest.p50_us,
            machine_p99_over_p50=percentile(yardstick, 99) / percentile(yardstick, 50),
            by_nodes=rows,
        )


def _constant_work_us() -> float:
    """Return the processor time, in microseconds, of constant work about as long as a request's decisions."""
    began = time.thread_time_ns()
    total = 0
    for number in range(_YARDSTICK_STEPS):
        total += number * number % 7
    return (time.thread_time_ns() - began) / 1000


class _Load:
    """A full tree behind a scheduler that always has running and queued requests."""

    def __init__(self, policy: str, device: DeviceProfile, nodes: int, random: Random) -> None:
        lookahead = Lookahead()
        tokens = nodes * DOCUMENT_TOKENS
        gpu = max(RUNNING * TOP_K * DOCUMENT_TOKENS * 2, int(tokens * GPU_SHARE))
        self._tree = KnowledgeTree(
            create_policy(policy, lookahead),
            KvStorage(Capacities(gpu, tokens - gpu)),
            ["one"],
            TreeCosts(device.prefill_seconds),
        )
        self._scheduler = Scheduler(self._tree, lookahead, RUNNING, WAITING + 1, WAITING, slack=SLACK)
        self._nodes = nodes
        self._requests = self._generate(random)
        self._running: list[str] = []
        self._times_us: list[float] = []
        self._wall_us: list[float] = []
        self._hits = self._documents = 0
        self._evictions = 0

    def fill(self, progress: Callable[[int, int], None]) -> None:
        """Serve requests until the slowest tier is full."""
        host = self._tree.tiers.locations[""].host
        while host.used + DOCUMENT_TOKENS <= host.capacity:
            self._serve(next(self._requests))
            if not len(self._tree.registry.nodes) % 1000:
                progress(min(len(self._tree.registry.nodes), self._nodes), self._nodes)
        progress(self._nodes, self._nodes)

    def measure(self, requests: int) -> None:
        """Serve ``requests`` more and record the time of each."""
        before = sum(cache.evictions for cache in self._tree.tiers)
        for _ in range(requests):
            request = next(self._requests)
            began, began_on_wall = time.thread_time_ns(), time.perf_counter_ns()
            self._serve(request)
            self._times_us.append((time.thread_time_ns() - began) / 1000)
            self._wall_us.append((time.perf_counter_ns() - began_on_wall) / 1000)
        self._evictions += sum(cache.evictions for cache in self._tree.tiers) - before

    def row(self) -> SchedulingRow:
        """Return the results so far."""
        return SchedulingRow(
            nodes=len(self._tree.registry.nodes),
            requests=len(self._times_us),
            p50_us=percentile(self._times_us, 50),
            p99_us=percentile(self._times_us, 99),
            max_us=max(self._times_us),
            wall_p50_us=percentile(self._wall_us, 50),
            wall_p99_us=percentile(self._wall_us, 99),
            evictions=self._evictions,
            hit_rate=self._hits / self._documents if self._documents else 0.0,
        )

    def _serve(self, request: Request) -> None:
        """Make all decisions on one request, with others running and queued."""
        documents = [document.content for document in request.documents]
        running = None
        for stage in range(1, STAGES + 1):
            # A search finds the last document late.
            candidates = documents[: TOP_K - 1] if stage < STAGES // 2 else documents
            decision = speculation.decide(
                candidates, running, self._scheduler.speculative.has_room(), final=stage == STAGES
            )
            if decision is SpeculationDecision.START:
                running = candidates
        grant = self._scheduler.admit(request, 0.0)
        if grant is not None:
            self._running.append(grant.query_id)
        if self._scheduler.instances.queued >= WAITING:
            for granted in self._scheduler.complete(self._running.pop(0), 0.0, kept=True, unwritten=()):
                self._running.append(granted.query_id)
                self._documents += len(granted.documents)
                self._hits += sum(step.source is not None for step in granted.documents)

    def _generate(self, random: Random) -> Iterator[Request]:
        """Yield requests without end: popular first documents, each followed by a few companions."""
        weights = list(accumulate((rank + 1) ** -SKEW for rank in range(self._nodes)))
        number = 0
        while True:
            for first in random.choices(range(self._nodes), cum_weights=weights, k=1000):
                number += 1
                path = [f"{first}", *(f"{first}.{cache}.{random.randrange(COMPANIONS)}" for cache in range(1, TOP_K))]
                documents = tuple(PathDocument(content, DOCUMENT_TOKENS) for content in path)
                yield Request(str(number), "bench", documents, QUESTION_TOKENS)
