"""Decisions a second, by the number of instances and of controllers that share the requests.

The decisions on a request are: routing and queueing it, admitting it to the tree, noting its first token and completing
it. On average one request runs on each instance.

- Simulated: each shard serves its part of the requests, one shard after the other. Shards share nothing, so together
  they take as long as the longest of them, in processor time.
- In processes: the shards serve their parts at once, each in a process of its own, and the clock counts. That is done
  for no more shards than there are processors.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from cachectl.costs.device_profile import DeviceProfile
from cachectl.runtime.live_controller import spare_full_collections
from cachectl.settings import ControllerSettings
from cachectl.sharding.controller_shard import ControllerShard
from examine.measuring import Progress
from ragtree_lab.controller.machines import Machines
from ragtree_lab.controller.popular_documents import Documents, PopularRequests
from ragtree_lab.controller.processes import Report, in_processes
from ragtree_lab.controller.shard import Served, Shard, part_of, together
from ragtree_lab.workloads.workload import TraceRequest

_MOST_MORE = 10
_TURNS = 10
_RATE = 1.0
"""Requests a second on each instance. It only sets the clock that frequencies count by."""


class DecisionRow(msgspec.Struct, frozen=True):
    """Requests a second that so many ``shards`` decide on, with so many ``instances``.

    ``by_processes_per_s`` is by the clock, None if there are more shards than processors. ``largest_share`` is that of
    the shard with the most requests. ``found_rate`` is the share of the prompts' tokens, without questions, that plans
    found in a tier.
    """

    instances: int
    shards: int
    requests: int
    decisions_per_s: float
    by_processes_per_s: float | None
    largest_share: float
    found_rate: float


class Speedup(msgspec.Struct, frozen=True):
    """Decisions a second of several shards over those of one, by the number of shards."""

    simulated: dict[str, float]
    processes: dict[str, float]


class Traffic(msgspec.Struct, frozen=True):
    """Requests that warm controllers up, and those that ``then`` count."""

    warm_up: PopularRequests
    then: PopularRequests


class DecisionBenchmark:
    """Measures ``requests`` with the most instances, and up to ten times as many with fewer.

    All numbers of shards take turns, so that the machine's noise affects all alike. ``machines(instances)`` are what
    the shards know. Garbage is collected as in the controller's process.
    """

    def __init__(
        self,
        machines: Callable[[int], Machines],
        device: DeviceProfile,
        settings: ControllerSettings,
        documents: Documents,
        requests: int,
    ) -> None:
        self._machines = machines
        self._device = device
        self._settings = settings
        self._documents = documents
        self._requests = requests

    def run(self, instances: Sequence[int], shards: Sequence[int], seed: int, progress: Progress) -> list[DecisionRow]:
        """A row for each number of instances and of shards. Raises what the processes raise."""
        spare_full_collections()
        rows: list[DecisionRow] = []
        for number in instances:
            requests = self._requests * min(_MOST_MORE, max(1, max(instances) // number))
            rate = _RATE * number
            # So many that each shard has one for each instance.
            warm_up = PopularRequests(self._documents, max(requests, number * max(shards)), rate, seed)
            then = PopularRequests(self._documents, requests, rate, seed + 1, begin_s=2 * warm_up.length / rate)
            say = partial(progress, f"deciding with {number:,} instances")
            rows += self._rows(number, shards, Traffic(warm_up, then), say)
        return rows

    def _rows(
        self, instances: int, shards: Sequence[int], traffic: Traffic, progress: Callable[[int, int], None]
    ) -> list[DecisionRow]:
        tasks = {
            count: [
                _ShardTask(
                    self._machines(instances), self._device, self._settings, traffic, ControllerShard(shard, count)
                )
                for shard in range(count)
            ]
            for count in shards
        }
        steps, done = len(shards) + _TURNS, 0
        at_once: dict[int, float] = {}
        for count in shards:
            progress(done, steps)
            done += 1
            if count <= len(os.sched_getaffinity(0)):
                at_once[count] = _by_processes(tasks[count])
        warm = {count: [task.warmed_up() for task in tasks[count]] for count in shards}
        turns: dict[int, list[list[Served]]] = {count: [[] for _ in warm[count]] for count in shards}
        for turn in range(_TURNS):
            progress(done, steps)
            done += 1
            for count in shards:
                for (shard, part), served in zip(warm[count], turns[count], strict=True):
                    served.append(shard.serve(part[turn::_TURNS]))
        progress(done, steps)
        return [_row(instances, [together(served) for served in turns[count]], at_once.get(count)) for count in shards]


class _ShardTask(msgspec.Struct, frozen=True):
    """A shard of the controller with its part of the traffic."""

    machines: Machines
    device: DeviceProfile
    settings: ControllerSettings
    traffic: Traffic
    shard: ControllerShard

    def warmed_up(self) -> tuple[Shard, list[TraceRequest]]:
        """The shard after its part of the first requests, and its part of those that count."""
        scheduler = self.machines.scheduler(self.device, self.settings, self.shard)
        shard = Shard(scheduler, max(1, self.shard.share(self.machines.count)))
        shard.warm_up(part_of(self.traffic.warm_up.requests(), self.shard))
        return shard, part_of(self.traffic.then.requests(), self.shard)

    def in_process(self, report: Report) -> Served:
        """Warm up and wait for the other shards; then serve."""
        spare_full_collections()
        shard, part = self.warmed_up()
        report.meet()
        return shard.serve(part)


def speedups(rows: Sequence[DecisionRow]) -> dict[str, Speedup]:
    """Speedups by the number of instances, where there is a row of one shard to compare with."""
    ones = {row.instances: row for row in rows if row.shards == 1}
    found = {str(instances): Speedup({}, {}) for instances in ones}
    for row in rows:
        one = ones.get(row.instances)
        if one is None or row is one:
            continue
        into, shards = found[str(row.instances)], str(row.shards)
        into.simulated[shards] = row.decisions_per_s / one.decisions_per_s
        if row.by_processes_per_s is not None and one.by_processes_per_s is not None:
            into.processes[shards] = row.by_processes_per_s / one.by_processes_per_s
    return found


def _row(instances: int, served: Sequence[Served], by_processes_per_s: float | None) -> DecisionRow:
    every = together(served)
    return DecisionRow(
        instances,
        len(served),
        every.requests,
        every.requests / max(shard.seconds for shard in served),
        by_processes_per_s,
        max(shard.requests for shard in served) / every.requests,
        every.found_tokens / max(1, every.tokens),
    )


def _by_processes(tasks: Sequence[_ShardTask]) -> float:
    """Requests a second of all shards at once, each in a process, until the last one is done."""
    served = in_processes([task.in_process for task in tasks], lambda _: None)
    return together(served).requests / max(shard.wall_s for shard in served)
