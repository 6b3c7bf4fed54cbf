"""Decisions by the size of the directory: whether they take longer as it grows.

A new process registers all nodes on the disk of one machine, which is full then. Decisions on paths that are drawn
evenly from them follow, which is the worst case for the processor's caches. Then come decisions on new paths: each of
their documents evicts one from the GPU, and one from the disk, to which it is copied at once. Each path is asked for
twice in a row, and the first time counts. So the policy learns that new paths are used again, and keeps them.
"""

import time
from collections.abc import Sequence
from functools import partial
from random import Random

import msgspec
import psutil

from cachectl.costs.device_profile import DeviceProfile
from cachectl.nodes.node import PathDocument
from cachectl.runtime.live_controller import collect_while_idle, spare_full_collections
from cachectl.scheduling.request import Request
from cachectl.scheduling.scheduler import Scheduler
from cachectl.settings import ControllerSettings, Swap
from cachectl.tree.grant import Grant
from examine.measuring import Progress
from examine.measuring.statistics import percentile
from protocol.tiers import Tier
from ragtree_lab.controller.machines import Machines
from ragtree_lab.controller.popular_documents import NAMESPACE
from ragtree_lab.controller.processes import Report, in_processes
from ragtree_lab.controller.registered_paths import (
    check_memory,
    held_nodes,
    needed_bytes,
    nodes_of,
    path,
    paths_of,
    register,
    whole_pages,
)

_QUESTION_TOKENS = 32
_INTERVAL_S = 1.0
_PHASES = 4
"""Warming up, lookups, decisions on known paths, and on new ones."""


class DecisionTimes(msgspec.Struct, frozen=True):
    """Processor time of the decisions on requests of one kind: ``per_s`` by the mean, and microseconds of a request.

    ``found_rate`` is the share of the documents' tokens that plans found in a tier. ``evictions`` are those of a
    request from both tiers.
    """

    per_s: float
    p50_us: float
    p99_us: float
    max_us: float
    found_rate: float
    evictions: float


class GrowthRow(msgspec.Struct, frozen=True):
    """A directory of so many ``nodes``: its memory, and the processor time of what the controller does with it.

    ``lookup_us`` is the mean time to look up a known path, in microseconds. ``known`` are decisions on paths that the
    disk has, and ``new`` on such that evict. Decisions are to route a request, to admit it, to note its first token and
    to complete it. ``slowest_registration_ms`` is that of one node: indexes grow by a copy of themselves.
    ``collection_s`` is the garbage collection in the first moment without requests.
    """

    nodes: int
    bytes_per_node: float
    registered_per_s: float
    slowest_registration_ms: float
    collection_s: float
    lookup_us: float
    known: DecisionTimes
    new: DecisionTimes


class GrowthBenchmark:
    """Measures ``requests`` of each kind with about so many ``nodes``, of documents of ``document_tokens``.

    The GPU keeps ``gpu_tokens``. Each size has a process of its own, and one runs at a time.
    """

    def __init__(
        self,
        device: DeviceProfile,
        settings: ControllerSettings,
        nodes: Sequence[int],
        document_tokens: int,
        gpu_tokens: int,
        requests: int,
    ) -> None:
        self._device = device
        self._settings = settings.model_copy(update={"swap": Swap.WRITE_THROUGH})
        self._paths = [paths_of(count) for count in nodes]
        self._tokens = whole_pages(document_tokens)
        self._gpu_tokens = gpu_tokens
        self._requests = requests

    def needed_bytes(self) -> int:
        """About how much memory the largest size takes. Raises ConfigError if there is less."""
        most = nodes_of(max(self._paths))
        needed = needed_bytes(most)
        check_memory(needed, f"a directory of {most:,} nodes", "tree_nodes")
        return needed

    def run(self, seed: int, progress: Progress) -> list[GrowthRow]:
        """A row for each size. Raises ConfigError for too little memory, and what the processes raise."""
        self.needed_bytes()
        return [self._row(paths, seed, progress) for paths in self._paths]

    def _row(self, paths: int, seed: int, progress: Progress) -> GrowthRow:
        nodes = nodes_of(paths)
        total, done = nodes + _PHASES * self._requests, 0

        def advanced(count: int) -> None:
            nonlocal done
            done += count
            progress(f"deciding with {nodes:,} nodes", done, total)

        machine = Machines(1, self._gpu_tokens, 0, nodes * self._tokens)
        task = partial(_measured, machine, self._device, self._settings, paths, self._tokens, self._requests, seed)
        (row,) = in_processes([task], advanced)
        return row


def _measured(
    machine: Machines,
    device: DeviceProfile,
    settings: ControllerSettings,
    paths: int,
    tokens: int,
    requests: int,
    seed: int,
    report: Report,
) -> GrowthRow:
    spare_full_collections()
    process = psutil.Process()
    before = process.memory_info().rss
    scheduler = machine.scheduler(device, settings)
    (location,) = scheduler.tree.tiers.locations.values()
    nodes = nodes_of(paths)
    begin = time.thread_time()
    slowest_s = register(scheduler.tree, location.cache(Tier.DISK), held_nodes(paths, tokens), report)
    registered = time.thread_time()
    collect_while_idle()
    collected = time.thread_time()
    taken = process.memory_info().rss - before
    asked = _Asked(scheduler, requests, report)
    draws = Random(seed)  # noqa: S311 - a repeatable draw

    def known() -> list[tuple[PathDocument, ...]]:
        return [path(draws.randrange(paths), tokens) for _ in range(requests)]

    # Fills the GPU, and forgets how the nodes were registered.
    asked.decide(known())
    return GrowthRow(
        nodes=nodes,
        bytes_per_node=taken / nodes,
        registered_per_s=nodes / (registered - begin),
        slowest_registration_ms=1000 * slowest_s,
        collection_s=collected - registered,
        lookup_us=asked.look_up(known()),
        known=asked.decide(known()),
        new=asked.decide([path(paths + number, tokens) for number in range(requests)]),
    )


class _Asked:
    """Asks a scheduler about paths, one request at a time."""

    def __init__(self, scheduler: Scheduler, requests: int, report: Report) -> None:
        self._scheduler = scheduler
        self._requests = requests
        self._report = report
        self._asked = 0

    def look_up(self, paths: Sequence[tuple[PathDocument, ...]]) -> float:
        """Look all paths up; the mean time, in microseconds."""
        (instance,) = self._scheduler.instances.states
        lookup = self._scheduler.tree.lookup
        begin = time.thread_time()
        for documents in paths:
            lookup.cached_prefix(NAMESPACE, documents, instance, _QUESTION_TOKENS)
        taken_s = time.thread_time() - begin
        self._report.advance(len(paths))
        return 1e6 * taken_s / len(paths)

    def decide(self, paths: Sequence[tuple[PathDocument, ...]]) -> DecisionTimes:
        """Decide on two requests for each path; what the first ones took."""
        times_us: list[float] = []
        tokens = found = evictions = 0
        for documents in paths:
            before = self._evictions
            taken_us, grant = self._decide(documents)
            times_us.append(taken_us)
            evictions += self._evictions - before
            tokens += sum(step.tokens for step in grant.documents)
            found += sum(step.tokens for step in grant.documents if step.loaded_from is not None)
            self._decide(documents)
        self._report.advance(len(paths))
        return DecisionTimes(
            per_s=1e6 * len(times_us) / sum(times_us),
            p50_us=percentile(times_us, 50),
            p99_us=percentile(times_us, 99),
            max_us=max(times_us),
            found_rate=found / tokens,
            evictions=evictions / len(paths),
        )

    def _decide(self, documents: tuple[PathDocument, ...]) -> tuple[float, Grant]:
        """Make all decisions on a request; the microseconds of processor time, and its grant."""
        scheduler = self._scheduler
        self._asked += 1
        query_id, now = str(self._asked), self._asked * _INTERVAL_S
        request = Request(query_id, NAMESPACE, documents, _QUESTION_TOKENS, pinned=1)
        begin = time.thread_time_ns()
        grant = scheduler.admit(request, now)
        scheduler.prefilled(query_id, now)
        scheduler.complete(query_id, now, kept=True, unwritten=())
        taken_us = (time.thread_time_ns() - begin) / 1000
        assert grant is not None, "nothing else runs"
        return taken_us, grant

    @property
    def _evictions(self) -> int:
        return sum(cache.evictions for cache in self._scheduler.tree.tiers)
