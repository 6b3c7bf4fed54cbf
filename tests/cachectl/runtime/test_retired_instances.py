"""Requests of a retired instance: those that wait move to another, and those that run complete as usual."""

import asyncio
from functools import partial

import pytest
from controller_integrity import check_integrity
from controller_under_test import LEASE_S, Clock, ask, cached, checked_controllers, fill, report, waiting
from instance_cases import (
    GPU,
    RecordingExecutor,
    all_ready,
    caches,
    caches_with_copies,
    done,
)

from protocol.errors import Overloaded, UnknownInstance, UnknownPlan
from protocol.plans import NotWarmed, PlanOutcome, SpeculationDecision


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


# Waiting queries


async def test_queries_that_wait_for_a_retired_instance_move_in_order_of_arrival(build):
    controller = build("one", "two", max_queued=9, reorder_window=0)
    for query_id in ("on one", "on two"):
        await controller.admit(ask(query_id, question=100))
    tasks = {name: await waiting(controller, ask(name, question=9 - size)) for size, name in enumerate("abcdef")}
    at_two = list(controller._scheduler.instances.states["two"].queue)
    controller.instances.retire("one")
    check_integrity(controller)
    assert await done(tasks) == []
    ended, turns = "on two", []
    while len(turns) < 6:
        await controller.complete(report(ended))
        (ended,) = [name for name in await done(tasks) if name not in turns]
        assert tasks[ended].result().instance == "two"
        turns.append(ended)
    # The moved queries go behind those that already wait there, in their order of arrival.
    assert 0 < len(at_two) < 6
    assert turns == at_two + [name for name in "abcdef" if name not in at_two]
    await controller.complete(report(ended))
    await controller.complete(report("on one"))


async def test_a_moved_query_starts_at_once_if_there_is_room(build):
    controller = build("one")
    await controller.admit(ask("runs"))
    tasks = {name: await waiting(controller, ask(name)) for name in "ab"}
    controller.instances.add("two", "boot-2", [])
    assert await done(tasks) == []
    controller.instances.retire("one")
    assert await done(tasks) == ["a"]
    plan = await tasks["a"]
    assert (plan.instance, plan.boot) == ("two", "boot-2")
    await controller.complete(report("a"))
    assert (await tasks["b"]).instance == "two"
    await controller.complete(report("b"))


async def test_requests_wait_on_the_last_retired_instance_for_the_next(build):
    controller = build("one", max_queued=3, reorder_window=0)
    await controller.admit(ask("runs"))
    tasks = {"a": await waiting(controller, ask("a", "xyz"))}
    controller.instances.retire("one")
    check_integrity(controller)
    tasks |= {name: await waiting(controller, ask(name)) for name in "bc"}
    with pytest.raises(Overloaded):
        await controller.admit(ask("d"))
    await controller.complete(report("runs"))
    assert await done(tasks) == []
    controller.expire_leases()
    assert await caches(controller) == ["one"]
    controller.instances.add("two", "", [])
    check_integrity(controller)
    assert await done(tasks) == ["a"]
    for name in "abc":
        assert (await tasks[name]).instance == "two"
        await controller.complete(report(name))
    controller.expire_leases()
    assert await caches(controller) == ["two"]


async def test_queries_of_several_retired_instances_start_in_order_of_arrival(build):
    controller = build("one", "two", max_queued=2, reorder_window=0)
    for query_id in ("on one", "on two"):
        await controller.admit(ask(query_id, question=100))
    tasks = {name: await waiting(controller, ask(name, question=50)) for name in "ab"}
    controller.instances.retire("two")
    controller.instances.retire("one")
    tasks |= {name: await waiting(controller, ask(name, question=50)) for name in "cd"}
    with pytest.raises(Overloaded):
        await controller.admit(ask("too many"))
    controller.instances.add("three", "", [])
    (refused,) = [name for name in await done(tasks) if tasks[name].exception() is not None]
    assert refused == "d", "the last to arrive should be refused, because one queue is full"
    turns = []
    while len(turns) < 3:
        (name,) = [name for name in await done(tasks) if name not in (*turns, refused)]
        await controller.complete(report(name))
        turns.append(name)
    assert turns == ["a", "b", "c"]


async def test_a_query_cancelled_while_it_moves_ends_once(build):
    controller = build("one", "two")
    for query_id in ("on one", "on two"):
        await controller.admit(ask(query_id, question=9))
    tasks = {name: await waiting(controller, ask(name)) for name in "abcd"}
    for name in "ab":
        tasks[name].cancel()
    controller.instances.retire("one")
    check_integrity(controller)
    for name in "cd":
        tasks[name].cancel()
    for task in tasks.values():
        with pytest.raises(asyncio.CancelledError):
            await task
    stats = await controller.stats()
    assert (stats.queued, stats.running, stats.cancelled) == (0, 2, 4)


async def test_a_moved_query_is_refused_if_the_other_queue_is_full(build):
    controller = build("one", "two", max_queued=1)
    for query_id in ("on one", "on two"):
        await controller.admit(ask(query_id, question=9))
    tasks = {name: await waiting(controller, ask(name)) for name in "ab"}
    controller.instances.retire("one")
    refused = [name for name in await done(tasks) if isinstance(tasks[name].exception(), Overloaded)]
    assert len(refused) == 1
    assert (await controller.stats()).queued == 1


async def test_a_reinstated_instance_goes_on(build):
    controller = build("one")
    controller.instances.boots["one"] = "boot"
    await controller.admit(ask("runs", "ab"))
    tasks = {name: await waiting(controller, ask(name, "ab")) for name in "xy"}
    controller.instances.retire("one")
    await controller.complete(report("runs"))
    assert await done(tasks) == []
    controller.instances.reinstate("one")
    assert await done(tasks) == ["x"]
    plan = await tasks["x"]
    assert (plan.boot, [node.source for node in plan.nodes]) == ("boot", [GPU, GPU])
    await controller.complete(report("x"))
    assert await done(tasks) == ["x", "y"]
    assert not controller.instances.tiers.retired


async def test_waiting_queries_go_to_the_first_reinstated_instance(build):
    controller = build("one", "two")
    for query_id in ("on one", "on two"):
        await controller.admit(ask(query_id, question=9))
    tasks = {name: await waiting(controller, ask(name, question=9)) for name in "ab"}
    for instance in ("one", "two"):
        controller.instances.retire(instance)
    for query_id in ("on one", "on two"):
        await controller.complete(report(query_id))
    controller.instances.reinstate("two")
    check_integrity(controller)
    (first,) = await done(tasks)
    await controller.complete(report(first))
    assert {(await task).instance for task in tasks.values()} == {"two"}


async def test_waiting_queries_go_to_a_retired_instance_that_restarts(build):
    controller = build("one", "two")
    for query_id in ("on one", "on two"):
        await controller.admit(ask(query_id, question=9))
    task = await waiting(controller, ask("waits", question=9))
    for instance in ("one", "two"):
        controller.instances.retire(instance)
    controller.instances.restart("two", "", [])
    check_integrity(controller)
    assert (await task).instance == "two"
    assert controller.instances.tiers.retired == {"one"}


# Running queries


async def test_a_retired_instance_completes_its_queries_and_is_removed(build):
    controller = build("one", "two", max_running=9)
    controller.instances.boots |= {"one": "boot-1", "two": "boot-2"}
    plan = await controller.admit(ask("runs", "ab"))
    assert (plan.instance, plan.boot) == ("one", "boot-1")
    controller.instances.retire("one")
    assert (controller.instances.tiers.retired, set(controller.instances.boots)) == ({"one"}, {"one", "two"})
    await controller.prefilled("runs")
    assert await cached(controller, "ab") == [None, None], "a query used the retired instance's cache"
    assert await caches(controller) == ["one", "two"]
    await controller.complete(report("runs"))
    controller.expire_leases()
    assert (controller.instances.tiers.retired, set(controller.instances.boots)) == (set(), {"two"})
    assert await caches(controller) == ["two"]
    assert not any("one" in where for where in caches_with_copies(await controller.tree(9, 1000)))
    stats = await controller.stats()
    assert (stats.running, stats.completed) == (0, 1)
    with pytest.raises(UnknownInstance):
        controller.instances.retire("one")
    with pytest.raises(UnknownInstance):
        controller.instances.reinstate("one")


async def test_an_idle_retired_instance_is_removed_unless_it_is_the_last(build):
    controller = build("one", "two")
    await fill(controller, "a")
    controller.instances.retire("one")
    assert await caches(controller) == ["two"]
    controller.instances.retire("two")
    controller.expire_leases()
    assert await caches(controller) == ["two"]
    controller.instances.add("three", "", [])
    controller.expire_leases()
    assert await caches(controller) == ["three"]


async def test_an_expired_lease_does_not_keep_a_retired_instance(build, clock):
    controller = build("one", "two")
    await controller.admit(ask("lost", "a"))
    controller.instances.retire("one")
    clock.now = LEASE_S
    controller.expire_leases()
    assert await caches(controller) == ["two"]
    with pytest.raises(UnknownPlan):
        await controller.complete(report("lost"))


async def test_a_retired_instance_receives_nothing_new(build, engines):
    controller = build("one", "two", max_running=2)
    await fill(controller, "x")
    plan = await controller.admit(ask("runs", "x"))
    assert (plan.instance, plan.nodes[0].source) == ("one", GPU)
    await all_ready()
    controller.instances.retire("one")
    engines.done.clear()
    await controller.on_candidates("guesses", ["a"], final=False)
    speculative = await controller.speculate("guesses", ["a"], ask("guesses~1", "ab"))
    assert speculative.instance == "two"
    assert (await controller.admit(ask("admitted", "ab"))).instance == "two"
    assert await controller.on_candidates("third", ["a"], final=False) is SpeculationDecision.WAIT
    assert await controller.speculate("third", ["a"], ask("third~1", "ab")) is None
    await controller.complete(report("guesses~1", PlanOutcome.CANCELLED, computed=0))
    await controller.complete(report("admitted"))
    # The retired instance's cache does not count as warm. With no other instance idle, nothing is warmed up.
    warmed = await controller.warm(ask("warm", "x"))
    assert warmed.instance == "two"
    assert await controller.warm(ask("again", "x")) is NotWarmed.BUSY
    await controller.complete(report("warm"))
    await controller.complete(report("runs"))
    await all_ready()
    assert engines.asked("one") == []


async def test_a_speculation_on_a_retired_instance_can_be_confirmed(build):
    controller = build("one", "two")
    await controller.on_candidates("query", ["a"], final=False)
    plan = await controller.speculate("query", ["a"], ask("query~1", "a"))
    assert plan.instance == "one"
    controller.instances.retire("one")
    check_integrity(controller)
    assert await controller.on_candidates("query", ["a"], final=True) is SpeculationDecision.KEEP
    check_integrity(controller)
    assert (await controller.stats()).running == 1
    await controller.prefilled("query~1")
    await controller.complete(report("query~1"))
    controller.expire_leases()
    assert await caches(controller) == ["two"]


async def test_a_speculation_on_a_retired_instance_can_be_dropped(build):
    controller = build("one", "two")
    await controller.on_candidates("query", ["a"], final=False)
    await controller.speculate("query", ["a"], ask("query~1", "a"))
    controller.instances.retire("one")
    assert await controller.on_candidates("query", ["b"], final=True) is SpeculationDecision.DROP
    await controller.complete(report("query~1", PlanOutcome.CANCELLED, computed=0))
    controller.expire_leases()
    assert await caches(controller) == ["two"]


async def test_a_prefetch_on_a_retired_instance_does_not_delay_other_instances(build, engines):
    controller = build("one", prepare_after_s=0.0)
    await controller.admit(ask("on one", "x"))
    await controller.prefilled("on one")
    task = await waiting(controller, ask("waits", "ab"))
    await all_ready()
    (begun,) = engines.prepared
    assert begun.instance == "one"
    controller.instances.retire("one")
    check_integrity(controller)
    controller.instances.add("two", "", [])
    assert (await task).instance == "two"
    await engines.prefilled(begun.query_id)
    await controller.complete(report("on one"))
    controller.expire_leases()
    assert await caches(controller) == ["two"]
    await controller.complete(report("waits"))
    check_integrity(controller)


async def test_a_query_moved_during_its_prefetch_starts_without_waiting_for_it(build, engines):
    controller = build("one", "two", prepare_after_s=0.0)
    for query_id in ("on one", "on two"):
        await controller.admit(ask(query_id, question=9))
        await controller.prefilled(query_id)
    task = await waiting(controller, ask("waits", "ab"))
    await all_ready()
    (begun,) = engines.prepared
    controller.instances.retire(begun.instance)
    other = "two" if begun.instance == "one" else "one"
    await controller.complete(report(f"on {other}"))
    assert (await task).instance == other
    await engines.prefilled(begun.query_id)
    await controller.complete(report("waits"))
