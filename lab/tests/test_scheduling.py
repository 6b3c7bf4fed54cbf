"""The scheduling benchmark measures a full tree with evictions and reports correct figures."""

import gc
from random import Random

import msgspec
import pytest
from controller_integrity import check_integrity

from cachectl.costs.device_profile import DeviceProfile
from cachectl.policies import policy_names
from ragtree_lab.scheduling import (
    DOCUMENT_TOKENS,
    RUNNING,
    TOP_K,
    WAITING,
    SchedulingBenchmark,
    SchedulingResult,
    SchedulingRow,
    _Load,
)

DEVICE = DeviceProfile.shipped("a10g-7b")


@pytest.fixture(autouse=True)
def thresholds():
    """Set Python's default GC thresholds for a test and restore the previous ones after it."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield gc.get_threshold()
    gc.set_threshold(*before)


def silent(step: str, done: int, total: int) -> None:
    pass


def loaded(policy: str, nodes: int = 120, seed: int = 0) -> _Load:
    load = _Load(policy, DEVICE, nodes, Random(seed))
    load.fill(lambda done, total: None)
    return load


def test_row_has_the_figures_of_its_tree_size():
    result = SchedulingBenchmark("PGDSF", DEVICE, seed=0).run([100, 200], 60, silent)
    assert isinstance(result, SchedulingResult)
    assert result.policy == "PGDSF"
    assert list(result.by_nodes) == ["100", "200"]
    for size, row in result.by_nodes.items():
        # A node may have copies in both tiers, so there are slightly fewer nodes.
        assert 0.7 * int(size) <= row.nodes <= int(size)
        assert row.requests == 60
        assert 0 < row.p50_us <= row.p99_us <= row.max_us
        assert 0 < row.wall_p50_us <= row.wall_p99_us
        assert row.evictions > 0
        assert 0 < row.hit_rate < 1
    assert result.by_nodes["200"].nodes > result.by_nodes["100"].nodes
    assert 1 <= result.machine_p99_over_p50 < 100


def test_largest_tree_is_compared_with_the_smallest_in_any_order():
    result = SchedulingBenchmark("LRU", DEVICE, seed=0).run([150, 60, 100], 20, silent)
    largest, smallest = result.by_nodes["150"], result.by_nodes["60"]
    assert (result.p50_us, result.p99_us) == (largest.p50_us, largest.p99_us)
    assert result.p50_ratio == pytest.approx(largest.p50_us / smallest.p50_us)


def test_progress_reports_filling_and_measuring():
    reported: dict[str, list[tuple[int, int]]] = {}
    SchedulingBenchmark("LRU", DEVICE, seed=0).run(
        [60, 100], 45, lambda step, done, total: reported.setdefault(step, []).append((done, total))
    )
    assert list(reported) == ["filling a tree of 60 nodes", "filling a tree of 100 nodes", "measuring"]
    for steps in reported.values():
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1]
    assert reported["measuring"][-1] == (45, 45)


@pytest.mark.parametrize("requests", [1, 7, 45])
def test_requested_number_of_requests_is_measured(requests):
    result = SchedulingBenchmark("LRU", DEVICE, seed=0).run([60], requests, silent)
    assert result.by_nodes["60"].requests == requests
    assert result.p50_ratio == 1


@pytest.mark.parametrize("policy", [name for name in policy_names() if name != "NONE"])
def test_tree_stays_full(policy):
    load = loaded(policy)
    for _ in range(3):
        gpu = load._tree.tiers.gpu("one")
        assert load._tree.tiers.locations[""].host.used + DOCUMENT_TOKENS > load._tree.tiers.locations[""].host.capacity
        # Running requests reserve room, so the GPU is nearly full.
        assert gpu.used + RUNNING * TOP_K * DOCUMENT_TOKENS >= gpu.capacity
        load.measure(40)
        check_integrity(load._tree)
        check_integrity(load._scheduler)
    assert load.row().evictions > 0


def test_decisions_are_made_with_running_and_queued_requests():
    load = loaded("PGDSF")
    for _ in range(20):
        load.measure(1)
        assert (load._scheduler.instances.running, load._scheduler.instances.queued) == (RUNNING, WAITING - 1)
        assert sorted(load._running) == sorted(load._tree.grants.open)


def test_evictions_before_the_measurement_are_not_counted():
    load = loaded("LRU")
    assert sum(place.evictions for place in load._tree.tiers) > 0
    before = sum(place.evictions for place in load._tree.tiers)
    load.measure(30)
    after = sum(place.evictions for place in load._tree.tiers)
    assert load.row().evictions == after - before > 0


def test_equal_seeds_give_equal_figures_except_times():
    def decisions(seed: int) -> tuple[int, int, float]:
        load = loaded("FORESIGHT", seed=seed)
        load.measure(100)
        row = load.row()
        return row.nodes, row.evictions, row.hit_rate

    assert decisions(1) == decisions(1)
    assert decisions(1) != decisions(2)


def test_garbage_collector_is_tuned_as_in_the_controller(thresholds):
    SchedulingBenchmark("LRU", DEVICE, seed=0).run([60], 1, silent)
    assert gc.get_threshold()[2] > thresholds[2]


def test_result_round_trips_as_json():
    result = SchedulingBenchmark("LRU", DEVICE, seed=0).run([60], 5, silent)
    assert msgspec.json.decode(msgspec.json.encode(result), type=SchedulingResult) == result
    assert isinstance(result.by_nodes["60"], SchedulingRow)
