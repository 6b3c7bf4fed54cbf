"""A controller that follows fake instances as they come, restart, hang and go."""

import asyncio

import pytest
from controller_integrity import check_integrity
from controller_under_test import ask, key, report
from fake_fleet import MEMORY, TOKENS, Engine, Fleet, held

from cachectl.runtime import live_controller as live_module
from cachectl.runtime.live_controller import DESERTED_S, LiveController
from cachectl.settings import ControllerSettings
from cachectl.sharding.controller_shard import ControllerShard
from cachectl.tree.snapshot import NodeRecord, Snapshot
from protocol.cache import DocumentDeletion
from protocol.errors import EngineDied
from protocol.kv import HeldNode, Orders, ResidencyReport
from protocol.tiers import Tier

GPU, HOST, DISK = Tier


async def where(live: LiveController, documents: str) -> list[Tier | None]:
    plan = await live.controller.admit(ask("look", documents))
    await live.controller.complete(report("look", computed=0))
    return [node.source for node in plan.nodes]


def events(logs: list) -> list[str]:
    return [entry["event"] for entry in logs]


async def test_it_starts_with_all_running_instances(start):
    fleet = Fleet(a=Engine(boot="boot-a"), b=Engine(boot="boot-b"))
    fleet.engines["a"].reports = (held(GPU, "x", "a"), held(HOST, "h"))
    fleet.engines["b"].reports = (held(GPU, "y", "b"), held(DISK, "d"))
    live = await start(fleet)
    assert live.controller.instances.boots == {"a": "boot-a", "b": "boot-b"}
    plan = await live.controller.admit(ask("query", "y"))
    assert (plan.instance, plan.boot) == ("b", "boot-b")
    assert [node.source for node in plan.nodes] == [GPU]
    await live.controller.complete(report("query"))
    assert await where(live, "h") == [HOST]
    # The first instance's report of the shared tiers counts, so "d" of the second one is dropped.
    assert await where(live, "d") == [None]
    assert await live.follow() is False


async def page_stamp(live: LiveController, query_id: str) -> int:
    """The stamp of the pages that a plan gets in host memory, because the GPU has no room."""
    plan = await live.controller.admit(ask(query_id, query_id[-1]))
    await live.controller.complete(report(query_id))
    return plan.nodes[0].pages.stamp


async def test_pages_are_handed_out_above_all_stamps_whatever_the_clock_says(start):
    # The clock stands at 0. A former controller's clock was ahead, and its pages are free again.
    fleet = Fleet(a=Engine(gpu_pages=0))
    fleet.engines["a"].reports = (ResidencyReport(HOST, (), highest_stamp=500),)
    live = await start(fleet)
    assert await page_stamp(live, "on a") == 501
    # Orders of the former controller were still under way. The other instance has carried them out.
    fleet.engines["b"] = Engine(gpu_pages=0, boot="boot-b")
    fleet.engines["b"].reports = (held(HOST, "x"), ResidencyReport(HOST, (), highest_stamp=900))
    assert await live.follow() is True
    assert await page_stamp(live, "on b") == 901
    assert await where(live, "x") == [None]


async def test_the_stamps_of_another_machine_do_not_count(start):
    fleet = Fleet(a=Engine(gpu_pages=0), b=Engine(gpu_pages=0, boot="boot-b", shared="elsewhere"))
    fleet.engines["b"].reports = (ResidencyReport(HOST, (), highest_stamp=900),)
    live = await start(fleet)
    assert await page_stamp(live, "on a") < 900


async def test_it_does_not_start_without_an_instance(start):
    with pytest.raises(EngineDied):
        await start(Fleet())


async def test_a_new_instance_gets_requests_and_a_lost_one_gets_none(start):
    fleet = Fleet(a=Engine())
    live = await start(fleet)
    await live.controller.admit(ask("on a"))
    fleet.engines["b"] = Engine(boot="boot-b")
    assert await live.follow() is True
    assert (await live.controller.admit(ask("on b"))).instance == "b"
    del fleet.engines["a"]
    assert await live.follow() is True
    assert live.controller.instances.tiers.retired == {"a"}
    assert await live.follow() is False, "an instance is retired once"
    await live.controller.complete(report("on a"))
    live.controller.expire_leases()
    assert set(live.controller.instances.boots) == {"b"}


async def test_an_instance_whose_adapters_have_other_files_gets_no_requests(start):
    fleet = Fleet(a=Engine())
    fleet.engines["a"].adapters = {"legal": "of the first"}
    live = await start(fleet)
    other = fleet.engines["b"] = Engine(boot="boot-b")
    other.adapters = {"legal": "of another"}
    assert await live.follow() is False
    assert live.controller.instances.refused == {"b"}
    started_anew = fleet.engines["c"] = Engine(boot="boot-c")
    started_anew.adapters = {"legal": "of the first"}
    assert await live.follow() is True
    assert set(live.controller.instances.boots) == {"a", "c"}


@pytest.mark.parametrize("memory", [MEMORY, None])
async def test_an_instance_that_returns_before_it_has_ended_gets_requests_again(start, memory):
    fleet = Fleet(a=Engine(memory))
    live = await start(fleet)
    engine = fleet.engines.pop("a")
    assert await live.follow() is True
    waits = asyncio.create_task(live.controller.admit(ask("waits")))
    await asyncio.sleep(0)
    fleet.engines["a"] = engine
    assert await live.follow() is True
    assert (await waits).instance == "a"
    assert not live.controller.instances.tiers.retired
    assert await live.follow() is False


async def test_an_instance_that_returns_after_it_was_forgotten_is_restored_from_its_report(start):
    fleet = Fleet(a=Engine(), b=Engine())
    live = await start(fleet)
    engine = fleet.engines.pop("b")
    await live.follow()
    assert set(live.controller.instances.boots) == {"a"}
    engine.reports = (held(GPU, "x", "b"),)
    fleet.engines["b"] = engine
    await live.follow()
    plan = await live.controller.admit(ask("query", "x"))
    assert (plan.instance, plan.nodes[0].source) == ("b", GPU)


async def test_a_restarted_engine_is_restored_from_its_new_report(start):
    fleet = Fleet(a=Engine())
    fleet.engines["a"].reports = (held(GPU, "x", "a"), held(HOST, "h"))
    live = await start(fleet)
    assert (await live.controller.admit(ask("lost", "x"))).boot == "boot"
    fleet.engines["a"].restarts()
    fleet.engines["a"].reports = (held(HOST, "i", first_page=20),)
    assert await live.follow() is True
    assert (await live.controller.stats()).failed == 1
    assert [await where(live, documents) for documents in "xhi"] == [[None], [HOST], [HOST]]
    assert live.controller.instances.boots == {"a": "boot+"}
    assert await live.follow() is False


async def test_a_restarted_engine_reports_only_its_gpu_while_others_run(start):
    fleet = Fleet(a=Engine(), b=Engine())
    live = await start(fleet)
    fleet.engines["b"].restarts()
    fleet.engines["b"].reports = (held(GPU, "g", "b"), held(HOST, "h"))
    await live.follow()
    assert [await where(live, documents) for documents in "gh"] == [[GPU], [None]]


@pytest.mark.parametrize("error", [EngineDied("gone"), RuntimeError("broken")])
async def test_a_failing_instance_does_not_stop_the_look_at_others(start, error):
    fleet = Fleet(a=Engine(), c=Engine())
    live = await start(fleet)
    fleet.engines["b"] = Engine()
    fleet.engines["a"].fails = error
    fleet.engines["c"].restarts()
    assert await live.follow() is True
    assert live.controller.instances.boots == {"a": "boot", "b": "boot", "c": "boot+"}
    fleet.engines["a"].fails = None
    assert await live.follow() is False


async def test_a_hanging_instance_does_not_stop_the_look_at_others(start, monkeypatch):
    fleet = Fleet(b=Engine(), d=Engine())
    live = await start(fleet)
    monkeypatch.setattr(live_module, "ANSWER_S", 0.01)
    fleet.engines |= {"a": Engine(), "c": Engine(), "e": Engine()}
    fleet.engines["a"].hangs = fleet.engines["d"].hangs = True
    del fleet.engines["b"]
    assert await live.follow() is True
    assert set(live.controller.instances.boots) == {"c", "d", "e"}
    fleet.engines["a"].hangs = False
    assert await live.follow() is True
    assert set(live.controller.instances.boots) == {"a", "c", "d", "e"}


async def test_an_instance_with_an_invalid_report_is_added_empty(start):
    fleet = Fleet(a=Engine())
    live = await start(fleet)
    fleet.engines["b"] = Engine()
    fleet.engines["b"].reports = (ResidencyReport(GPU, (HeldNode("tenant", (), 1),), "b"),)
    await live.follow()
    asked = fleet.engines["b"].asked
    assert set(live.controller.instances.boots) == {"a", "b"}
    await live.follow()
    assert (fleet.engines["b"].asked, set(live.controller.instances.boots)) == (asked + 1, {"a", "b"})


# Shared tiers


async def test_an_instance_of_another_machine_has_tiers_of_its_own(start):
    fleet = Fleet(a=Engine())
    fleet.engines["a"].reports = (held(HOST, "h"),)
    live = await start(fleet, max_running=9)
    fleet.engines["b"] = Engine(shared="elsewhere", host_pages=50)
    fleet.engines["b"].reports = (held(GPU, "g", "b"), held(HOST, "i"))
    await live.follow()
    assert (live.controller.instances.at("machine"), live.controller.instances.at("elsewhere")) == ({"a"}, {"b"})
    assert [await where(live, documents) for documents in "hgi"] == [[HOST], [GPU], [HOST]]
    tiers = {tier.place: tier.capacity_tokens for tier in (await live.controller.stats()).tiers}
    assert (tiers["host@machine"], tiers["host@elsewhere"]) == (100, 50)
    # A second one there finds the same.
    fleet.engines["c"] = Engine(shared="elsewhere", boot="boot-c")
    fleet.engines["c"].reports = (held(HOST, "unknown", first_page=20),)
    await live.follow()
    assert live.controller.instances.at("elsewhere") == {"b", "c"}
    assert await where(live, "i") == [HOST]
    check_integrity(live.controller)


async def test_a_machine_without_instances_is_forgotten_and_drops_all_kv_before_it_is_believed_again(start):
    fleet = Fleet(a=Engine(), b=Engine(shared="elsewhere"))
    fleet.engines["a"].reports = (held(HOST, "h"), held(DISK, "d"))
    now = [0.0]
    live = await start(fleet, clock=lambda: now[0])
    a = fleet.engines.pop("a")
    await live.follow()
    now[0] = DESERTED_S - 1
    await live.follow()
    assert set(live.controller.instances.tiers.locations) == {"machine", "elsewhere"}
    now[0] = DESERTED_S + 1
    assert await live.follow()
    assert set(live.controller.instances.tiers.locations) == {"elsewhere"}
    check_integrity(live.controller)
    a.restarts()
    fleet.engines["c"] = a
    await live.follow()
    assert a.orders == [Orders(everything=True)]
    assert live.controller.instances.at("machine") == {"c"}
    # From now on, it is believed.
    a.restarts()
    a.reports = (held(HOST, "h"),)
    await live.follow()
    assert a.orders.count(Orders(everything=True)) == 1
    assert await where(live, "h") == [HOST]
    check_integrity(live.controller)


async def test_time_without_any_instance_does_not_count(start):
    fleet = Fleet(a=Engine(), b=Engine(shared="elsewhere"))
    now = [0.0]
    live = await start(fleet, clock=lambda: now[0])
    a, b = fleet.engines.pop("a"), fleet.engines.pop("b")
    for now[0] in (0.0, 2 * DESERTED_S):
        await live.follow()
    fleet.engines |= {"a": a, "b": b}
    for engine in (a, b):
        engine.restarts()
    await live.follow()
    assert set(live.controller.instances.tiers.locations) == {"machine", "elsewhere"}
    assert Orders(everything=True) not in [*a.orders, *b.orders]


async def test_what_joins_later_drops_what_it_has(start):
    fleet = Fleet(a=Engine())
    live = await start(fleet)
    fleet.engines |= {"b": Engine(boot="boot-b"), "c": Engine(boot="boot-c", shared="elsewhere")}
    await live.follow()
    assert fleet.engines["a"].orders == []
    # The machine of "b" was always there, so only its own blocks may hold what was deleted.
    assert fleet.engines["b"].orders == [Orders(everything=True, tiers=(GPU,))]
    assert fleet.engines["c"].orders == [Orders(everything=True)]


async def test_a_machine_that_joins_keeps_what_is_on_a_disk_of_others(start):
    fleet = Fleet(a=Engine(disk="common"))
    fleet.engines["a"].reports = (held(DISK, "d"),)
    live = await start(fleet)
    b = Engine(boot="boot-b", shared="elsewhere", disk="common")
    # The tree knows best what is there: this report may be older than a deletion.
    b.reports = (held(DISK, "x"),)
    fleet.engines["b"] = b
    await live.follow()
    assert b.orders == [Orders(everything=True, tiers=(GPU, HOST))]
    assert live.controller.instances.tiers.places == {"machine", "elsewhere", "common"}
    del fleet.engines["a"]
    await live.follow()
    assert await where(live, "d") == [DISK]
    assert await where(live, "x") == [None]
    check_integrity(live.controller)


async def test_a_common_disk_is_restored_behind_the_memory_of_all_machines(start):
    fleet = Fleet(a=Engine(disk="common"), b=Engine(boot="boot-b", shared="elsewhere", disk="common"))
    behind = HeldNode("tenant", ("x", "y"), TOKENS)
    for engine in fleet.engines.values():
        engine.reports = (ResidencyReport(DISK, (behind,)),)
    fleet.engines["b"].reports += (held(HOST, "x"),)
    live = await start(fleet)
    assert (await live.controller.tree(9, 99)).nodes == 2
    assert not live.controller._tree.tiers.pending_moves
    check_integrity(live.controller)


async def test_a_location_keeps_the_disk_that_it_came_with(start):
    # Its first engine did not know the disk's name.
    fleet = Fleet(a=Engine())
    live = await start(fleet)
    for name in ("b", "c"):
        fleet.engines[name] = Engine(boot=f"boot-{name}", disk="named")
        await live.follow()
        assert fleet.engines[name].orders == [Orders(everything=True, tiers=(GPU,))]
    assert live.controller.instances.tiers.places == {"machine"}


async def test_a_shard_has_its_own_kv_dropped_only(tmp_path):
    fleet, settings = Fleet(a=Engine()), ControllerSettings(policy="LRU", prepare_after_s=None)
    live = LiveController(settings, fleet, tmp_path, lambda: 0.0, lambda: 0.0, shard=ControllerShard(1, 2))
    await live.start(lambda done, total: None)
    fleet.engines["b"] = Engine(boot="boot-b", shared="elsewhere")
    await live.follow()
    assert fleet.engines["b"].orders == [Orders(everything=True, of="#1")]


async def test_kv_generators_join_and_are_not_the_measure(start):
    fleet = Fleet(a=Engine(), b=Engine(boot="boot-b"))
    fleet.engines["a"].generates_kv = True
    live = await start(fleet)
    assert live.controller.instances.boots == {"a": "boot", "b": "boot-b"}
    plan = await live.controller.admit(ask("query", "x"))
    assert plan.instance == "b"
    await live.controller.complete(report("query"))
    assert [load.kv_generator for load in (await live.controller.stats()).instances] == [False, True]


async def test_a_rebooted_machine_keeps_its_disk(start):
    fleet = Fleet(a=Engine(disk="disk"), b=Engine(shared="elsewhere"))
    fleet.engines["a"].reports = (held(DISK, "d"),)
    live = await start(fleet)
    a = fleet.engines.pop("a")
    await live.follow()
    # The name of its memory contains that of the boot.
    a.restarts(shared="machine, booted again")
    a.reports = (held(DISK, "d"),)
    fleet.engines["a"] = a
    await live.follow()
    assert a.orders == [Orders(everything=True, tiers=(GPU, HOST))]
    assert await where(live, "d") == [DISK]
    check_integrity(live.controller)


async def test_a_disk_that_nobody_had_for_long_is_dropped(start):
    fleet = Fleet(a=Engine(disk="disk"), b=Engine(shared="elsewhere"))
    live = await start(fleet)
    a = fleet.engines.pop("a")
    await live.follow()
    await live.controller.delete_document(DocumentDeletion(("d",), "tenant"))
    a.restarts()
    fleet.engines["a"] = a
    await live.follow()
    assert a.orders == [Orders(everything=True)]


@pytest.mark.parametrize(
    ("places", "missed"),
    [
        # A store from before the places were recorded, or none.
        (None, ()),
        (("machine", "disk"), ()),
        (("machine before its reboot", "disk"), (GPU, HOST)),
        (("elsewhere",), (GPU, HOST, DISK)),
        ((), (GPU, HOST, DISK)),
    ],
)
async def test_a_restarted_controller_believes_what_the_former_one_knew(start, places, missed):
    fleet = Fleet(a=Engine(disk="disk"), b=Engine(boot="boot-b", disk="disk"))
    live = await start(fleet, snapshot=Snapshot(places=places))
    expected = [Orders(everything=True, tiers=missed)] if missed else []
    assert fleet.engines["a"].orders == expected
    # The second instance finds the machine known, by then.
    assert fleet.engines["b"].orders == []
    assert (await live.controller.recovery.snapshot()).places == ("disk", "machine")


async def test_a_machine_that_was_forgotten_is_fenced_by_the_next_controller(start):
    fleet = Fleet(a=Engine(), b=Engine(shared="elsewhere"))
    fleet.engines["a"].reports = (held(HOST, "h"),)
    live = await start(fleet)
    a = fleet.engines.pop("a")
    await live.follow()
    await live.controller.delete_document(DocumentDeletion(("h",), "tenant"))
    snapshot = await live.controller.recovery.snapshot()
    fleet.engines["a"] = a
    after = await start(fleet, snapshot=snapshot)
    assert a.orders == [Orders(everything=True)]
    assert not any(orders.everything for orders in fleet.engines["b"].orders)
    assert set(after.controller.instances.tiers.locations) == {"machine", "elsewhere"}


async def test_a_deletion_does_not_wait_for_a_machine_without_instances(start):
    fleet = Fleet(a=Engine(), b=Engine(shared="elsewhere"))
    fleet.engines["a"].reports = (held(HOST, "h"),)
    live = await start(fleet)
    a = fleet.engines.pop("a")
    await live.follow()
    await live.controller.delete_document(DocumentDeletion(("h",), "tenant"))
    assert set(live.controller.instances.tiers.locations) == {"elsewhere"}
    a.restarts()
    a.reports = (held(HOST, "h"),)
    fleet.engines["a"] = a
    await live.follow()
    assert Orders(everything=True) in a.orders


async def test_the_first_controller_gives_each_machine_its_pins_back(start):
    fleet = Fleet(a=Engine(), b=Engine(shared="elsewhere"))
    fleet.engines["b"].reports = (held(HOST, "h"),)
    record = NodeRecord("print/tenant", ("h",), TOKENS, (), 3, 1, 0.5, pinned=1)
    live = await start(fleet, snapshot=Snapshot(1, {key("h", "print/tenant"): record}))
    (node,) = (await live.controller.tree(1, 9)).namespaces["tenant"]
    assert node.pinned


async def test_the_last_machine_is_never_forgotten(start):
    fleet = Fleet(a=Engine())
    now = [0.0]
    live = await start(fleet, clock=lambda: now[0])
    fleet.engines.clear()
    for now[0] in (0.0, 2 * DESERTED_S, 4 * DESERTED_S):
        await live.follow()
    assert list(live.controller.instances.tiers.locations) == ["machine"]


async def test_a_machine_that_comes_back_in_time_is_not_forgotten(start):
    fleet = Fleet(a=Engine(), b=Engine(shared="elsewhere"))
    fleet.engines["a"].reports = (held(HOST, "h"),)
    now = [0.0]
    live = await start(fleet, clock=lambda: now[0])
    for _ in range(3):
        a = fleet.engines.pop("a")
        await live.follow()
        now[0] += DESERTED_S - 1
        a.restarts()
        a.reports = (held(HOST, "h"),)
        fleet.engines["a"] = a
        await live.follow()
        assert await where(live, "h") == [HOST]


async def test_the_next_instance_of_a_machine_finds_its_shared_tiers(start):
    fleet = Fleet(a=Engine())
    fleet.engines["a"].reports = (held(HOST, "h"),)
    live = await start(fleet)
    del fleet.engines["a"]
    await live.follow()
    fleet.engines["b"] = Engine()
    fleet.engines["b"].reports = (held(HOST, "h"), held(HOST, "i", first_page=20))
    await live.follow()
    live.controller.expire_leases()
    assert set(live.controller.instances.boots) == {"b"}
    assert [await where(live, documents) for documents in "hi"] == [[HOST], [HOST]]


async def test_a_single_instance_may_restart_on_another_machine(start):
    fleet = Fleet(a=Engine())
    fleet.engines["a"].reports = (held(HOST, "h"),)
    live = await start(fleet)
    fleet.engines["a"].restarts(shared="elsewhere")
    fleet.engines["a"].reports = (held(HOST, "i"),)
    await live.follow()
    assert live.controller.instances.at("elsewhere") == {"a"}
    assert [await where(live, documents) for documents in "hi"] == [[None], [HOST]]


async def test_engines_without_kv_memory_get_plans(start):
    fleet = Fleet(a=Engine(None), b=Engine(None))
    live = await start(fleet)
    assert live.controller.instances.boots == {"a": "", "b": ""}
    plans = [await live.controller.admit(ask(name)) for name in ("first", "second")]
    assert {(plan.instance, plan.boot) for plan in plans} == {("a", ""), ("b", "")}
    del fleet.engines["a"]
    assert await live.follow() is True
    assert await live.follow() is False
    fleet.engines["c"] = Engine(None)
    assert await live.follow() is True
    assert (await live.controller.admit(ask("third"))).instance == "c"


async def test_orders_reach_their_instances(start):
    fleet = Fleet(a=Engine(), b=Engine())
    live = await start(fleet)
    await live.controller.clear()
    assert all(engine.orders[-1].everything for engine in fleet.engines.values())
    del fleet.engines["b"]
    await live.follow()
    await live.controller.clear()
    assert len(fleet.engines["a"].orders) == 2
