"""Bytes over the network against the hit rate, and what several controllers do to first tokens, in a simulation.

The scheduler and the tree are the shipped classes, on a virtual clock. Engines and links are modelled. Each machine has
one instance, and all machines together get so many requests a second for each of them. They are served in these ways:

- ``routed``: queries go where their documents are, and machines read nothing of each other. One controller decides, or
  several of them, which do not know what the others have sent to the engines.
- ``shared``: one controller, and machines read each other's KV over links of some speed.

KV is copied to host memory as soon as it is computed, in all ways.
"""

from collections.abc import Sequence

import msgspec

from cachectl.costs.device_profile import DeviceProfile
from cachectl.settings import ControllerSettings, Swap
from cachectl.sharding.controller_shard import ControllerShard
from examine.measuring import Progress
from ragtree_lab.controller.machines import Machines
from ragtree_lab.controller.peer_simulator import PeerSimulator
from ragtree_lab.controller.popular_documents import Documents, PopularRequests
from ragtree_lab.simulation.simulator import SimulatedService

ROUTED, SHARED = "routed", "shared"
_GIGABIT = 1e9 / 8


class NetworkLoad(msgspec.Struct, frozen=True):
    """What is asked: ``requests`` of each machine, at a ``rate`` a second, after as many that fill the caches.

    They are about ``documents``.
    """

    documents: Documents
    requests: int
    rate: float


class NetworkRow(msgspec.Struct, frozen=True):
    """How so many ``machines`` served in one ``way``, with so many ``shards`` of the controller.

    Links carry ``link_gbit_per_s`` (0: there are none).

    ``token_hit_rate`` is the share of the documents' tokens that were not computed, and ``peer_rate`` is what was read
    on other machines over all of these tokens. ``network_bytes_per_s`` is the KV that all machines together sent.
    ``nodes`` are in the trees at the end. Times are on the virtual clock. ``failed_reads`` took longer than an engine
    waits.
    """

    machines: int
    way: str
    shards: int
    link_gbit_per_s: float
    token_hit_rate: float
    peer_rate: float
    network_bytes_per_s: float
    mean_ttft_s: float
    p99_ttft_s: float
    failed_reads: int
    nodes: int
    requests: int
    simulated_s: float


class NetworkBenchmark:
    """Simulates a load on machines that have KV of ``gpu_tokens`` and ``host_tokens`` each."""

    def __init__(
        self,
        device: DeviceProfile,
        settings: ControllerSettings,
        load: NetworkLoad,
        gpu_tokens: int,
        host_tokens: int,
    ) -> None:
        self._device = device
        self._settings = settings.model_copy(update={"swap": Swap.WRITE_THROUGH})
        self._load = load
        self._gpu_tokens = gpu_tokens
        self._host_tokens = host_tokens

    def run(
        self, machines: Sequence[int], shards: Sequence[int], links: Sequence[float], seed: int, progress: Progress
    ) -> list[NetworkRow]:
        """Rows for each number of machines: each number of ``shards``, and ``links`` of each speed in Gbit/s."""
        cases = [*((0.0, shard_count) for shard_count in shards), *((link, 1) for link in links)]
        return [self._row(count, *case, seed, progress) for count in machines for case in cases]

    def _row(self, machines: int, link: float, shards: int, seed: int, progress: Progress) -> NetworkRow:
        load, way = self._load, SHARED if link else ROUTED
        speed = link * _GIGABIT
        known = Machines(machines, self._gpu_tokens, self._host_tokens, link_bytes_per_s=speed or None)
        schedulers = [
            known.scheduler(self._device, self._settings, ControllerShard(shard, shards)) for shard in range(shards)
        ]
        service = SimulatedService(
            machines, self._settings.max_running, self._settings.max_queued, self._settings.reorder_window
        )
        requests, rate = load.requests * machines, load.rate * machines
        step, done = f"simulating {machines} machines, {_named(way, shards, link)}", 0

        def arrived(count: int) -> None:
            nonlocal done
            done += count
            progress(step, done, 2 * requests)

        begin_s = 0.0
        for part in range(2):
            # The second part finds the trees as the first one has left them, and counts.
            workload = PopularRequests(load.documents, requests, rate, 2 * seed + part, begin_s)
            simulator = PeerSimulator(schedulers, self._device, service, speed)
            result = simulator.run(workload, arrived)
            before_s, begin_s = begin_s, result.simulated_s
        seconds = result.simulated_s - before_s
        tokens = result.documents * load.documents.tokens
        return NetworkRow(
            machines,
            way,
            shards,
            link,
            result.token_hit_rate,
            simulator.peer_tokens / tokens,
            simulator.peer_tokens * self._device.kv_bytes_per_token / seconds,
            result.mean_ttft_s,
            result.p99_ttft_s,
            simulator.failed_reads,
            sum(len(scheduler.tree.registry.nodes) for scheduler in schedulers),
            result.requests,
            seconds,
        )


def _named(way: str, shards: int, link: float) -> str:
    return f"{way} at {link:g} Gbit/s" if link else f"{way} by {shards}"
