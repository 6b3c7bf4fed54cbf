"""Shards share all requests among them, and decide on their parts as one controller does."""

import pytest
from controller_integrity import check_integrity

from cachectl.costs.device_profile import DeviceProfile
from cachectl.scheduling.scheduler import Scheduler
from cachectl.settings import ControllerSettings
from cachectl.sharding.controller_shard import ControllerShard, shard_of
from ragtree_lab.controller.decisions import DecisionBenchmark, DecisionRow, speedups
from ragtree_lab.controller.machines import PAGE_TOKENS, Machines
from ragtree_lab.controller.popular_documents import Documents, PopularRequests
from ragtree_lab.controller.shard import Shard, part_of

DEVICE = DeviceProfile.shipped("a10g-7b")
SETTINGS = ControllerSettings(max_running=4)
DOCUMENTS = Documents(100, tokens=32)


def requests(count: int, seed: int = 0, begin_s: float = 0.0) -> list:
    return list(PopularRequests(DOCUMENTS, count, 1.0, seed, begin_s).requests())


def scheduler(shards: int = 1, **changes) -> Scheduler:
    return Machines(**{"count": 3, "gpu_tokens": 1000, "host_tokens": 2000, **changes}).scheduler(
        DEVICE, SETTINGS, ControllerShard(0, shards)
    )


def test_each_request_belongs_to_the_shard_of_its_first_document():
    asked = requests(300)
    parts = [part_of(asked, ControllerShard(shard, 3)) for shard in range(3)]
    assert sorted(request.arrival_s for part in parts for request in part) == [each.arrival_s for each in asked]
    for shard, part in enumerate(parts):
        assert part
        assert {shard_of(request.documents[0].id, 3) for request in part} == {shard}


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_a_shard_has_its_part_of_every_budget_and_knows_all_instances(shards):
    tree = scheduler(shards, disk_tokens=3000).tree
    assert list(tree.tiers.gpus) == ["instance-0", "instance-1", "instance-2"]
    assert len(tree.tiers.locations) == 3
    for cache in tree.tiers:
        whole = {"gpu": 1000, "host": 2000, "disk": 3000}[cache.tier]
        assert whole / shards - PAGE_TOKENS < cache.capacity <= whole / shards
        assert cache.capacity % PAGE_TOKENS == 0


def test_machines_have_links_only_if_they_are_given_one():
    assert not scheduler().tree.tiers.links.exist
    links = scheduler(link_bytes_per_s=1e9).tree.tiers.links
    assert links.exist
    assert links.serves("machine-0", "instance-2")


def test_decisions_leave_a_sound_tree_with_as_many_in_flight_as_may_be():
    controller = scheduler()
    shard = Shard(controller, 5)
    shard.warm_up(requests(30))
    assert {state.running for state in controller.instances.states.values()} == {1, 2}
    served = shard.serve(requests(200, seed=1, begin_s=1000.0))
    assert served.requests == 200
    assert 0 < served.found_tokens < served.tokens
    assert served.seconds > 0
    assert served.wall_s > 0
    assert len(controller.book.requests) == 5
    check_integrity(controller.tree)
    check_integrity(controller)


def test_with_a_single_document_path_all_but_the_first_prompt_is_found():
    shard = Shard(scheduler(count=1), 1)
    (request,) = requests(1)
    served = shard.serve([request._replace(arrival_s=float(number)) for number in range(1, 12)])
    assert served.tokens == 11 * (3 * 32 + 64)
    # One request is in flight while the next one is admitted, so the second one finds nothing either.
    assert served.found_tokens == 9 * (3 * 32 + 64)


def test_a_row_for_each_number_of_instances_and_shards_also_at_once_in_processes():
    steps: list[tuple[str, int, int]] = []
    benchmark = DecisionBenchmark(lambda count: Machines(count, 1000, 2000), DEVICE, SETTINGS, DOCUMENTS, 40)
    rows = benchmark.run([2, 4], [1, 64], 0, lambda *step: steps.append(step))
    assert [(row.instances, row.shards, row.requests) for row in rows] == [
        (2, 1, 80),
        (2, 64, 80),
        (4, 1, 40),
        (4, 64, 40),
    ]
    for row in rows:
        assert row.decisions_per_s > 0
        assert (row.by_processes_per_s or 0) > 0 if row.shards == 1 else row.by_processes_per_s is None
        assert row.largest_share == 1 if row.shards == 1 else 1 / 64 <= row.largest_share < 1
        assert 0 <= row.found_rate < 1
    said = [(done, total) for step, done, total in steps if step == "deciding with 4 instances"]
    assert said == [(done, 12) for done in range(13)]


def test_speedups_are_over_one_shard_with_as_many_instances():
    def row(instances: int, shards: int, simulated: float, processes: float | None) -> DecisionRow:
        return DecisionRow(instances, shards, 100, simulated, processes, 0.5, 0.1)

    found = speedups([row(10, 1, 100.0, 50.0), row(10, 2, 190.0, 80.0), row(10, 4, 350.0, None), row(20, 2, 9.0, 9.0)])
    assert list(found) == ["10"]
    assert found["10"].simulated == {"2": 1.9, "4": 3.5}
    assert found["10"].processes == {"2": 1.6}
