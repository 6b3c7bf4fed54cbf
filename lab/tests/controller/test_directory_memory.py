"""The directory's memory is that of the nodes it registers, and is not measured where there is too little."""

import psutil
import pytest
from controller_integrity import check_integrity

from cachectl.costs.device_profile import DeviceProfile
from cachectl.settings import ControllerSettings
from protocol.errors import ConfigError
from protocol.tiers import Tier
from ragtree_lab.controller.directory import DirectoryBenchmark
from ragtree_lab.controller.machines import Machines
from ragtree_lab.controller.registered_paths import held_nodes

DEVICE = DeviceProfile.shipped("a10g-7b")
SETTINGS = ControllerSettings()


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DISK])
def test_all_nodes_are_registered_on_each_machine(tier):
    room = 31 * 32
    tree = Machines(2, 0, room, room).scheduler(DEVICE, SETTINGS).tree
    for location in tree.tiers.locations.values():
        assert all(tree.insert(held, location.cache(tier)) for held in held_nodes(10, 32))
        assert location.cache(tier).used == room
    assert len(tree.registry.nodes) == 31
    assert sorted(len(node.path) for node in tree.registry.nodes.values()) == [1, *[2] * 10, *[3] * 10, *[4] * 10]
    check_integrity(tree)


def test_each_tier_and_number_of_machines_is_measured():
    steps: dict[str, list[tuple[int, int]]] = {}

    def progress(step: str, done: int, total: int) -> None:
        steps.setdefault(step, []).append((done, total))

    result = DirectoryBenchmark(DEVICE, SETTINGS, 12_000, 100).run([1, 3], progress)
    assert result.document_pages == 7
    assert [(row.tier, row.machines, row.nodes) for row in result.rows] == [
        (Tier.DISK, 1, 12_001),
        (Tier.DISK, 3, 12_001),
        (Tier.HOST, 1, 1201),
        (Tier.HOST, 3, 1201),
    ]
    one, three, *_ = result.rows
    assert result.node_bytes["disk"] == one.bytes_per_node_and_machine > three.bytes_per_node_and_machine > 100
    assert result.machine_bytes["disk"] == pytest.approx(
        (3 * three.bytes_per_node_and_machine - one.bytes_per_node_and_machine) / 2
    )
    assert 0 < result.machine_bytes["disk"] < result.machine_bytes["host"]
    for step, said in steps.items():
        done, total = said[-1]
        assert done == total == (12_001 if "disk" in step else 1201) * (3 if "3 machines" in step else 1)


def test_one_number_of_machines_says_nothing_of_further_ones():
    assert DirectoryBenchmark(DEVICE, SETTINGS, 30, 16).run([1], lambda *_: None).machine_bytes == {}


def test_a_directory_that_does_not_fit_is_refused():
    benchmark = DirectoryBenchmark(DEVICE, SETTINGS, 10_000_000, 512)
    needed = DirectoryBenchmark(DEVICE, SETTINGS, 1000, 512).needed_bytes([1])
    machines = 10 * psutil.virtual_memory().total // (needed * 10_000)
    with pytest.raises(ConfigError, match=rf"on {machines} machines takes about [\d.]+ GiB, but only") as raised:
        benchmark.run([1, machines], lambda *_: None)
    assert raised.value.param == "nodes"


def test_more_nodes_and_more_machines_need_more():
    def needed(nodes: int, machines: int) -> int:
        return DirectoryBenchmark(DEVICE, SETTINGS, nodes, 512).needed_bytes([machines])

    assert needed(1000, 1) < needed(1000, 2) < needed(2000, 2)
