"""Orders to instances that retire, instances that are added or avoided, and machines that lose their instances."""

import asyncio
from functools import partial

import pytest
from controller_integrity import check_integrity
from controller_under_test import TOKENS, Clock, ask, cached, checked_controllers, fill, key, report, waiting
from instance_cases import (
    DISK,
    GPU,
    HOST,
    RecordingExecutor,
    all_ready,
    avoiding,
    caches,
    caches_with_copies,
    done,
    holding,
)

from cachectl.tiers.location import Capacities, KvStorage
from protocol.cache import DocumentDeletion
from protocol.errors import EngineDied, EngineNotReady, InvalidRequest
from protocol.kv import HeldNode, LostCopy, ResidencyReport
from protocol.plans import PlanOutcome


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def engines():
    return RecordingExecutor()


@pytest.fixture
def build(clock, engines):
    with checked_controllers(clock, executor=engines, policy="LRU") as build:
        yield partial(build, max_running=1)


# Orders


async def test_delete_clear_and_persist_do_not_wait_for_a_retired_instance(build, engines):
    controller = build("one", "two", disk=100)
    await controller.admit(ask("on one", "xy"))
    await fill(controller, "ab")
    controller.instances.retire("one")
    engines.hold("one")
    async with asyncio.timeout(5):
        assert await controller.delete_document(DocumentDeletion(("a",))) == 2
        await fill(controller, "cd")
        await controller.persist()
        assert {move.node for move in engines.moves("two") if move.target is DISK} == {key("c"), key("cd")}
        await controller.clear()
    assert engines.asked("two")[-1].everything
    await controller.complete(report("on one"))


async def test_an_instance_that_retires_before_delivery_receives_no_orders(build, engines):
    controller = build("one", "two", max_running=9, disk=100, swap="write_through")
    held = engines.hold("one")
    await controller.admit(ask("on one", "ab"))
    await controller.prefilled("on one")
    await all_ready()
    deletion = asyncio.create_task(controller.delete_document(DocumentDeletion(("z",))))
    await all_ready()
    controller.instances.retire("one")
    await controller.complete(report("on one"))
    controller.expire_leases()
    assert await caches(controller) == ["two"]
    engines.lost = [LostCopy(key("a"), GPU)]
    held.set()
    async with asyncio.timeout(5):
        assert await deletion == 0
    assert [orders.forget for orders in engines.asked("one")] == [()]
    deletes, checks = engines.asked("two")
    assert (deletes.moves, deletes.forget) == ((), (("tenant", "z"),))
    # It looks for what the other may have written.
    assert {(move.node, move.source, move.target) for move in checks.moves} == {
        (key(path), DISK, DISK) for path in ("a", "ab")
    }


async def test_a_deletion_is_not_confirmed_while_no_instance_can_carry_it_out(build, engines):
    # What the next instance finds on the same disk would bring the document back.
    controller = build("one", disk=100)
    controller.recovery.restore([holding(DISK, "a", 0)])
    await controller.admit(ask("runs", "x"))
    controller.instances.retire("one")
    with pytest.raises(EngineNotReady):
        await controller.delete_document(DocumentDeletion(("a",), "tenant"))
    # Not even if an instance of another machine can.
    controller.instances.add_location(KvStorage(Capacities(0, 100, 100), location="elsewhere"))
    controller.instances.add("far", "", [], "elsewhere")
    with pytest.raises(EngineNotReady, match="one of the machines"):
        await controller.delete_document(DocumentDeletion(("a",), "tenant"))
    controller.instances.add("two", "boot", [holding(DISK, "a", 0)])
    await controller.delete_document(DocumentDeletion(("a",), "tenant"))
    assert (("tenant", "a"),) in [orders.forget for orders in engines.asked("two")]


async def test_an_instance_that_takes_requests_again_carries_out_the_deletions_that_it_missed(build, engines):
    controller = build("one", "two")
    await controller.admit(ask("on one", "xy"))
    controller.instances.retire("one")
    for content in ("a", "b"):
        await controller.delete_document(DocumentDeletion((content,), "tenant"))
    assert engines.asked("one") == []
    engines.gone.add("one")
    controller.instances.reinstate("one")
    await all_ready()
    assert engines.asked("one") == []
    # A failed delivery is repeated, and concerns nobody else.
    engines.gone.clear()
    await controller.delete_document(DocumentDeletion(("c",), "tenant"))
    assert [orders.forget for orders in engines.asked("one")] == [(("tenant", "c"),)]
    await controller.complete(report("on one"))
    await all_ready()
    missed = engines.asked("one")[-1]
    # The others have deleted the documents from the shared tiers, and may have stored them again since.
    assert (missed.forget, missed.tiers) == ((("tenant", "a"), ("tenant", "b")), (GPU,))
    await controller.delete_document(DocumentDeletion(("d",), "tenant"))
    assert [orders.forget for orders in engines.asked("one")[2:]] == [(("tenant", "d"),)]


@pytest.mark.parametrize("again", ["restarted", "added"])
async def test_a_new_engine_has_missed_nothing(build, engines, again):
    controller = build("one", "two")
    await controller.admit(ask("on one", "xy"))
    controller.instances.retire("one")
    await controller.clear()
    if again == "restarted":
        controller.instances.restart("one", "next", ())
    else:
        await controller.complete(report("on one"))
        controller.expire_leases()
        assert await caches(controller) == ["two"]
        controller.instances.add("one", "next", ())
    await all_ready()
    assert engines.asked("one") == []


async def test_an_instance_that_missed_a_clear_drops_everything_when_it_takes_requests_again(build, engines):
    controller = build("one", "two")
    await controller.admit(ask("on one", "xy"))
    controller.instances.retire("one")
    await controller.clear()
    controller.instances.reinstate("one")
    await all_ready()
    assert [(orders.everything, orders.tiers) for orders in engines.asked("one")] == [(True, (GPU,))]
    await controller.complete(report("on one"))


async def test_an_instance_that_missed_no_deletion_is_sent_none(build, engines):
    controller = build("one", "two", disk=100)
    await controller.admit(ask("on one", "xy"))
    controller.instances.retire("one")
    await controller.persist()
    controller.instances.reinstate("one")
    await all_ready()
    assert engines.asked("one") == []
    await controller.complete(report("on one"))


async def test_a_delivery_that_fails_on_a_removed_instance_loses_no_move_of_shared_tiers(build, engines):
    controller = build("one", "two", host=100)
    controller.recovery.restore([holding(HOST, "a", 0)])
    held = engines.hold("one"), engines.hold("two")
    deletion = asyncio.create_task(controller.delete_document(DocumentDeletion(("a",))))
    await all_ready()
    controller.instances.retire("one")
    assert await caches(controller) == ["two"]
    engines.gone.add("one")
    for instance in held:
        instance.set()
    with pytest.raises(EngineDied):
        await deletion
    await controller.delete_document(DocumentDeletion(("a",)))
    assert [move.source for move in engines.moves("two")] == [HOST]


@pytest.mark.parametrize("executor", [None, "engines"])
async def test_other_instances_carry_out_moves_that_a_retired_instance_took(build, engines, executor):
    controller = build("one", "two", host=100, executor=engines if executor else None)
    controller.recovery.restore([holding(HOST, "a", 0)])
    held = [engines.hold(instance) for instance in ("one", "two")]
    controller._tree.delete("a")
    took = await controller.admit(ask("takes them along", "b"))
    assert [move.source for move in took.moves] == [HOST]
    controller.instances.retire(took.instance)
    await controller.complete(report("takes them along", PlanOutcome.FAILED, computed=0))
    controller.expire_leases()
    (other,) = await caches(controller)
    for instance in held:
        instance.set()
    await all_ready()
    done = engines.moves(other) if executor else list((await controller.admit(ask("next"))).moves)
    assert [(move.node, move.source) for move in done] == [(key("a"), HOST)]


async def test_a_pending_copy_of_a_removed_instance_is_not_believed(build):
    controller = build("one", host=100, swap="write_through", executor=None)
    await fill(controller, "a")
    assert caches_with_copies(await controller.tree(1, 1000)) == ["gpu@one", "host"]
    controller.instances.add("two", "", [])
    controller.instances.retire("one")
    assert caches_with_copies(await controller.tree(1, 1000)) == []
    assert await cached(controller, "a") == [None]


# Added instances, and instances to avoid


async def test_an_added_instance_brings_its_copies(build):
    controller = build("one", host=100)
    await fill(controller, "a")
    result = controller.instances.add("two", "boot-2", [holding(GPU, "b", 0, "two"), holding(HOST, "c", 0)])
    assert (result.restored, result.refused) == (2, 0)
    plan = await controller.admit(ask("query", "b"))
    assert (plan.instance, [node.source for node in plan.nodes], plan.boot) == ("two", [GPU], "boot-2")
    await controller.complete(report("query"))
    assert await cached(controller, "c") == [HOST]


async def test_an_added_instance_with_an_invalid_report_starts_empty(build):
    controller = build("one")
    await controller.admit(ask("runs", question=9))
    task = await waiting(controller, ask("waits", question=9))
    controller.instances.retire("one")
    with pytest.raises(InvalidRequest, match="at least one token"):
        controller.instances.add("two", "boot", [ResidencyReport(GPU, (HeldNode("t", ("a",), 0),), "two")])
    assert (await task).instance == "two"
    assert controller.instances.boots["two"] == "boot"


async def test_a_request_does_not_run_on_an_avoided_instance(build):
    controller = build("one", "two")
    await fill(controller, "a")
    assert (await controller.admit(avoiding("query", "one", documents="a"))).instance == "two"
    tasks = {"waits": await waiting(controller, avoiding("waits", "one"))}
    assert await done(tasks) == [], "the query started on the instance that it avoids"
    await controller.complete(report("query"))
    assert (await tasks["waits"]).instance == "two"
    await controller.complete(report("waits"))


async def test_a_request_that_avoids_every_instance_fails_at_once(build):
    controller = build("one", "two")
    with pytest.raises(EngineDied, match="no other instance"):
        await controller.admit(avoiding("query", "one", "two"))
    await controller.admit(ask("on one", question=99))
    controller.instances.retire("one")
    with pytest.raises(EngineDied, match="no other instance"):
        await controller.admit(avoiding("query", "two"))
    stats = await controller.stats()
    assert (stats.queued, stats.running, stats.rejected) == (0, 1, 0)


async def test_a_moved_request_still_avoids_its_instances(build):
    controller = build("one", "two")
    assert {(await controller.admit(ask(name, question=9))).instance for name in "ab"} == {"one", "two"}
    task = await waiting(controller, avoiding("waits", "one"))
    controller.instances.retire("two")
    with pytest.raises(EngineDied, match="no other instance"):
        await task
    check_integrity(controller)


# Machines


async def test_each_machine_uses_its_own_tiers(build, engines):
    controller = build("one", host=100, disk=100, max_running=9, swap="write_through")
    await fill(controller, "a")
    await all_ready()
    controller.instances.add_location(KvStorage(Capacities(0, 100, 100), location="elsewhere"))
    controller.instances.add("far", "", [], "elsewhere")
    assert (controller.instances.at(""), controller.instances.at("elsewhere")) == ({"one"}, {"far"})
    controller.instances.retire("one")
    assert await cached(controller, "a") == [None]
    await fill(controller, "a")
    assert await cached(controller, "a") == [GPU]
    await all_ready()
    # "one" has ended, so its machine is forgotten. When it comes back, it drops all its KV.
    await controller.delete_document(DocumentDeletion(("a",)))
    assert list(controller.instances.tiers.locations) == ["elsewhere"]
    dropped = {(move.source, move.target, move.location) for move in engines.moves("far") if move.target is None}
    assert dropped == {(GPU, None, "elsewhere"), (HOST, None, "elsewhere"), (DISK, None, "elsewhere")}
    check_integrity(controller)


async def test_an_instance_may_restart_on_another_machine(build):
    controller = build("one", host=100, disk=100)
    controller.instances.add_location(KvStorage(Capacities(0, 100, 100), location="elsewhere"))
    controller.instances.add("far", "", [], "elsewhere")
    controller.instances.restart("far", "", [], "elsewhere")
    assert controller.instances.at("") == {"one"}
    controller.instances.restart("far", "", [])
    assert controller.instances.at("") == {"one", "far"}
    assert controller.instances.tiers.deserted == ["elsewhere"]


async def test_a_machine_without_instances_is_forgotten_on_demand(build):
    controller = build("one", gpu=2 * TOKENS, host=4 * TOKENS, executor=None)
    await fill(controller, "ab", "cd")
    assert await cached(controller, "ab") == [HOST, HOST]
    controller.instances.add_location(KvStorage(Capacities(0, 4 * TOKENS, 0), location="elsewhere"))
    controller.instances.add("two", "", [holding(HOST, "x", 0)], "elsewhere")
    controller.instances.retire("one")
    controller.expire_leases()
    assert controller.instances.tiers.deserted == [""]
    controller.forget_location("")
    check_integrity(controller)
    assert list(controller.instances.tiers.locations) == ["elsewhere"]
    assert await cached(controller, "x") == [HOST]
    await fill(controller, "cd", "ef")
    assert await cached(controller, "cd") == [HOST, HOST]
    moves = (await controller.admit(ask("next"))).moves
    assert not {move.node for move in moves} & {key("a"), key("ab")}
