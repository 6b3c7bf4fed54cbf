"""Compares replacement policies: the same arrivals through the shipped classes, once per policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cachectl.nodes.keys import path_keys
from cachectl.policies.lookahead import Lookahead
from cachectl.scheduling.document_order import order_by_name
from cachectl.scheduling.scheduler import Scheduler
from cachectl.tiers.location import KvStorage
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.load_or_recompute import TreeCosts
from protocol.errors import ConfigError
from protocol.plans import DocumentOrder
from ragtree_lab.simulation.policies import create_simulated_policy
from ragtree_lab.simulation.policies.belady import Belady
from ragtree_lab.simulation.simulator import (
    SimulatedService,
    SimulationResult,
    Simulator,
    ordered_documents,
    system_prompt,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cachectl.costs.device_profile import DeviceProfile
    from cachectl.policies.base import ReplacementPolicy
    from cachectl.tiers.location import Capacities
    from ragtree_lab.workloads.workload import Workload


class PoliciesResult(msgspec.Struct, frozen=True):
    """Each policy's results on one workload, with the capacities used."""

    trace: str
    device: str
    gpu_tokens: int
    host_tokens: int
    disk_tokens: int
    order: str
    policies: dict[str, SimulationResult]


class PolicyBenchmark:
    """Serves one workload once per policy, on a device with the given capacities."""

    def __init__(self, device: DeviceProfile, capacities: Capacities, service: SimulatedService) -> None:
        self._device = device
        self._capacities = capacities
        self._service = service

    def run(self, workload: Workload, policies: Sequence[str], progress: Callable[[str, int], None]) -> PoliciesResult:
        """Return every policy's results. ``progress`` is called with the policy and a number of arrived requests.

        Before anything runs, raises UnknownPolicy, and ConfigError for BELADY if paths are not known in advance.
        """
        for name in policies:
            if name != Belady.name:
                create_simulated_policy(name, Lookahead())
            elif self._service.order is DocumentOrder.CACHED_FIRST:
                raise ConfigError(
                    "BELADY needs to know every path in advance, but cached-first order is decided at admission"
                )
        return PoliciesResult(
            trace=workload.name,
            device=self._device.name,
            gpu_tokens=self._capacities.gpu,
            host_tokens=self._capacities.host,
            disk_tokens=self._capacities.disk,
            order=self._service.order.value,
            policies={name: self.simulate(workload, name, progress) for name in policies},
        )

    def simulate(self, workload: Workload, policy: str, progress: Callable[[str, int], None]) -> SimulationResult:
        """Return one policy's results."""
        lookahead = Lookahead()
        tree = KnowledgeTree(
            self._policy(policy, lookahead, workload),
            KvStorage(self._capacities),
            [f"instance-{number}" for number in range(self._service.instances)],
            TreeCosts(self._device.prefill_seconds),
            composes=self._service.recompute_share is not None,
        )
        service = self._service
        scheduler = Scheduler(
            tree,
            lookahead,
            service.max_running,
            service.max_queued,
            service.reorder_window,
            slack=service.reorder_slack,
        )
        return Simulator(scheduler, self._device, service).run(workload, lambda count: progress(policy, count))

    def _policy(self, name: str, lookahead: Lookahead, workload: Workload) -> ReplacementPolicy:
        if name != Belady.name:
            return create_simulated_policy(name, lookahead)
        return Belady(lookahead, self._paths(workload))

    def _paths(self, workload: Workload) -> Iterator[list[bytes]]:
        """Yield the node keys of every request's path, as the simulator will request them."""
        order = order_by_name(self._service.order)
        for request in workload.requests():
            path = [*system_prompt(request), *ordered_documents(request, order, None)]
            yield path_keys(request.system_id, [document.content for document in path])
