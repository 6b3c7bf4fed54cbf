"""Decisions are timed on directories that really have their nodes, and whose tiers are full."""

import psutil
import pytest
from msgspec.structs import replace

from cachectl.costs.device_profile import DeviceProfile
from cachectl.settings import ControllerSettings
from protocol.errors import ConfigError
from protocol.tiers import Tier
from ragtree_lab.controller.growth import GrowthBenchmark
from ragtree_lab.controller.machines import Machines
from ragtree_lab.controller.popular_documents import NAMESPACE
from ragtree_lab.controller.registered_paths import check_memory, held_nodes, path, paths_of

DEVICE = replace(DeviceProfile.shipped("a10g-7b"), kv_bytes_per_token=131_072)
SETTINGS = ControllerSettings(max_running=4)


def benchmark(*nodes: int, requests: int = 100) -> GrowthBenchmark:
    return GrowthBenchmark(DEVICE, SETTINGS, nodes, 100, 1024, requests)


def test_known_paths_are_found_and_new_ones_evict_a_node_for_each_document():
    steps: dict[str, list[tuple[int, int]]] = {}

    def progress(step: str, done: int, total: int) -> None:
        steps.setdefault(step, []).append((done, total))

    rows = benchmark(900, 3000).run(0, progress)
    assert [row.nodes for row in rows] == [901, 3001]
    for row in rows:
        assert row.bytes_per_node > 100
        assert row.registered_per_s > 0
        assert 0 < row.slowest_registration_ms < 1000 * row.nodes / row.registered_per_s
        assert row.collection_s > 0
        assert 0 < row.lookup_us < row.known.p50_us
        assert row.known.found_rate == 1
        # The GPU has room for two paths of three documents behind the system prompt. The disk has all.
        assert row.known.evictions == pytest.approx(3, abs=0.2)
        assert row.new.found_rate == pytest.approx(1 / 4)
        assert row.new.evictions == pytest.approx(2 * 3, abs=0.3)
        for times in (row.known, row.new):
            assert times.p50_us <= times.p99_us <= times.max_us
            assert 1e6 / times.max_us <= times.per_s
    assert list(steps) == ["deciding with 901 nodes", "deciding with 3,001 nodes"]
    for said, row in zip(steps.values(), rows, strict=True):
        assert said[-1] == (row.nodes + 400, row.nodes + 400)


def test_a_path_is_the_one_that_was_registered():
    tree = Machines(1, 0, 0, 31 * 112).scheduler(DEVICE, SETTINGS).tree
    (location,) = tree.tiers.locations.values()
    assert all(tree.insert(held, location.disk) for held in held_nodes(10, 112))
    assert location.cache(Tier.DISK).used == location.disk.capacity
    for number in range(10):
        assert len(tree.lookup.hits(NAMESPACE, path(number, 112), "instance-0")) == 4
    assert len(tree.lookup.hits(NAMESPACE, path(10, 112), "instance-0")) == 1


@pytest.mark.parametrize(("nodes", "paths"), [(1, 1), (3, 1), (5, 1), (6, 2), (10_000_000, 3_333_333)])
def test_a_path_has_three_nodes_behind_the_system_prompt(nodes, paths):
    assert paths_of(nodes) == paths


def test_a_directory_that_does_not_fit_is_refused_before_anything_runs():
    nodes = psutil.virtual_memory().total // 100
    with pytest.raises(ConfigError, match=r"a directory of [\d,]+ nodes takes about [\d.]+ GiB, but only") as raised:
        benchmark(300, nodes).run(0, lambda *_: pytest.fail("it runs"))
    assert raised.value.param == "tree_nodes"
    check_memory(1, "a byte", "bytes")
