"""Simulated machines read each other's KV over links that serve one reader at a time."""

import pytest
from controller_integrity import check_integrity
from msgspec.structs import replace

from cachectl.costs.device_profile import DeviceProfile
from cachectl.costs.prefill_grid import PrefillGrid
from cachectl.settings import ControllerSettings, Swap
from cachectl.sharding.controller_shard import ControllerShard, shard_of
from protocol.tiers import Tier
from ragtree_lab.controller.machines import TIMEOUT_S, Machines
from ragtree_lab.controller.network import NetworkBenchmark, NetworkLoad
from ragtree_lab.controller.peer_simulator import PeerSimulator
from ragtree_lab.controller.popular_documents import Documents
from ragtree_lab.simulation.simulator import SimulatedService, SimulationResult
from ragtree_lab.workloads.workload import TraceDocument, TraceRequest, Workload

# A computed token takes 10 ms, a cached one nothing. Loading one from host memory takes 1 ms.
DEVICE = DeviceProfile(
    "toy", "made up", 1000.0, 1000.0, 1, PrefillGrid((0, 1000), (1, 1001), ((0.01, 10.01), (0.01, 10.01)))
)
SETTINGS = ControllerSettings(max_running=1, max_queued=1, swap=Swap.WRITE_THROUGH, policy="LRU")
LATENCY_S = 0.002


class Prompts(Workload):
    """A document for each arrival, of 16 tokens, and a question of 20."""

    name = "prompts"

    def __init__(self, *arrivals: tuple[float, str]) -> None:
        self._arrivals = arrivals

    @property
    def length(self):
        return len(self._arrivals)

    def requests(self):
        for arrival_s, id_ in self._arrivals:
            yield TraceRequest(arrival_s, (TraceDocument(id_, 16),), 20)


def simulated(
    link: float | None, *arrivals: tuple[float, str], machines: int = 2
) -> tuple[PeerSimulator, SimulationResult]:
    """Simulate arrivals on machines with a link of so many tokens a second."""
    scheduler = Machines(machines, 64, 64, link_bytes_per_s=link).scheduler(DEVICE, SETTINGS)
    simulator = PeerSimulator([scheduler], DEVICE, SimulatedService(machines, 1, 1), link or 0.0)
    result = simulator.run(Prompts(*arrivals), lambda _: None)
    check_integrity(scheduler.tree)
    check_integrity(scheduler)
    return simulator, result


def test_what_another_machine_has_is_read_there_and_counts_as_hit():
    # The third request finds the machine with its document at work.
    arrivals = ((0.0, "a"), (1.0, "a"), (1.0, "a"))
    simulator, result = simulated(1000.0, *arrivals)
    assert simulator.peer_tokens == 16
    assert result.hit_tokens_by_tier == {"gpu": 16, "host": 16, "disk": 0}
    assert result.token_hit_rate == pytest.approx(2 / 3)
    read_s = 16 / 1000 + LATENCY_S
    assert result.mean_ttft_s == pytest.approx((0.36 + 0.2 + read_s + 0.2) / 3)


def test_without_links_nothing_is_read_elsewhere():
    simulator, result = simulated(None, (0.0, "a"), (1.0, "a"), (1.0, "a"))
    assert simulator.peer_tokens == 0
    assert result.hit_tokens_by_tier["host"] == 0


def test_a_link_sends_to_one_reader_after_the_other():
    arrivals = ((0.0, "a"), (1.0, "a"), (1.0, "a"), (1.0, "a"))
    simulator, result = simulated(200.0, *arrivals, machines=3)
    assert simulator.peer_tokens == 32
    first, second = 16 / 200 + LATENCY_S, 2 * 16 / 200 + LATENCY_S
    assert result.mean_ttft_s == pytest.approx((0.36 + 0.2 + first + 0.2 + second + 0.2) / 4)
    # Each reader has learnt how long its own read took.
    links = simulator._tree.tiers.links
    learnt = sorted(links.seconds(reader, "machine-0", 16, Tier.HOST) for reader in ("instance-1", "instance-2"))
    assert learnt == pytest.approx([first, second])


def test_a_read_that_takes_too_long_fails_and_the_prompt_is_computed():
    # All readers are planned before any of them has learnt how long the link is taken.
    machines = 12
    arrivals = ((0.0, "a"), *((1.0, "a") for _ in range(machines)))
    simulator, result = simulated(120.0, *arrivals, machines=machines)
    sent = int((TIMEOUT_S - LATENCY_S) * 120 // 16)
    assert simulator.peer_tokens == 16 * sent
    assert simulator.failed_reads == machines - 1 - sent
    assert result.p99_ttft_s == pytest.approx(TIMEOUT_S + 0.36, rel=0.02)


def test_the_benchmark_counts_the_second_part_only_and_compares_ways():
    load = NetworkLoad(Documents(200, tokens=64), 100, 2.0)
    device = replace(DeviceProfile.shipped("a10g-7b"), kv_bytes_per_token=131_072)
    steps: dict[str, tuple[int, int]] = {}
    rows = NetworkBenchmark(device, ControllerSettings(max_running=4), load, 1024, 4096).run(
        [4], [1, 2], [10.0, 25.0], 0, lambda step, done, total: steps.update({step: (done, total)})
    )
    assert [(row.machines, row.way, row.shards, row.link_gbit_per_s) for row in rows] == [
        (4, "routed", 1, 0.0),
        (4, "routed", 2, 0.0),
        (4, "shared", 1, 10.0),
        (4, "shared", 1, 25.0),
    ]
    *routed, _, _ = rows
    _, _, *shared = rows
    assert [(row.peer_rate, row.network_bytes_per_s) for row in routed] == [(0, 0)] * 2
    for row in rows:
        assert row.requests == 400
        assert row.simulated_s == pytest.approx(50, rel=0.2)
        assert 0 < row.token_hit_rate < 1
        assert 0 < row.mean_ttft_s <= row.p99_ttft_s * 1.01
    for row in shared:
        tokens = row.peer_rate * row.requests * 3 * 64
        assert tokens > 0
        assert row.network_bytes_per_s == pytest.approx(tokens * 131_072 / row.simulated_s)
    assert list(steps.values()) == [(800, 800)] * 4


def test_controllers_do_not_see_what_the_others_have_sent():
    documents = [f"{number:064x}" for number in range(20)]
    first = next(id_ for id_ in documents if shard_of(id_, 2) == 0)
    other = next(id_ for id_ in documents if shard_of(id_, 2) == 1)
    schedulers = [Machines(1, 64, 64).scheduler(DEVICE, SETTINGS, ControllerShard(shard, 2)) for shard in range(2)]
    simulator = PeerSimulator(schedulers, DEVICE, SimulatedService(1, 1, 1), 0.0)
    result = simulator.run(Prompts((0.0, first), (0.0, other)), lambda _: None)
    # Neither makes its prompt wait, and the engine computes one after the other.
    assert result.mean_ttft_s == pytest.approx((0.36 + 2 * 0.36) / 2)
    assert result.documents == 2
    for scheduler in schedulers:
        assert len(scheduler.tree.registry.nodes) == 1
        check_integrity(scheduler)
