"""Instances that come and go under a controller: who waits moves on, what runs ends as usual, nothing is lost."""

import asyncio
from functools import partial

import msgspec
import pytest
from controller_under_test import LEASE_S, TOKENS, Clock, ask, cached, checked_controllers, fill, key, report, waiting

from protocol.cache import DocumentDeletion
from protocol.errors import EngineDied, InvalidRequest, Overloaded, UnknownInstance, UnknownPlan
from protocol.generation import PrefillResult
from protocol.kv import HeldNode, LostCopy, Move, Orders, Pages, ResidencyReport
from protocol.plans import PlanOutcome, PrefillPlan, SpeculationDecision
from protocol.tiers import Tier

GPU, HOST, DISK = Tier


class Engines:
    """Executor that notes what each instance does, and waits at those that are ``held`` until the test lets go."""

    def __init__(self) -> None:
        self.done: list[tuple[str, Orders]] = []
        self.lost: list[LostCopy] = []
        self.gone: set[str] = set()
        self.prepared: list[PrefillPlan] = []
        self._held: dict[str, asyncio.Event] = {}
        self._prefills: dict[str, asyncio.Future[PrefillResult | None]] = {}

    def hold(self, instance: str) -> asyncio.Event:
        self._held[instance] = asyncio.Event()
        return self._held[instance]

    async def carry_out(self, instance: str, orders: Orders) -> list[LostCopy]:
        if instance in self._held:
            await self._held[instance].wait()
        if instance in self.gone:
            raise EngineDied(f"{instance} is gone")
        self.done.append((instance, orders))
        lost, self.lost = self.lost, []
        return lost

    async def prefill(self, plan: PrefillPlan) -> PrefillResult | None:
        self.prepared.append(plan)
        self._prefills[plan.query_id] = asyncio.get_running_loop().create_future()
        return await self._prefills[plan.query_id]

    async def prefilled(self, plan_id: str) -> None:
        self._prefills[plan_id].set_result(PrefillResult(2 * TOKENS + 1, 0, 1.0))
        await settled()

    def asked(self, instance: str) -> list[Orders]:
        return [orders for name, orders in self.done if name == instance]

    def moves(self, instance: str) -> list[Move]:
        return [move for orders in self.asked(instance) for move in orders.moves]


async def settled() -> None:
    """All that is ready to happen has happened, timers that are due included."""
    for _ in range(20):
        await asyncio.sleep(0)


async def come(tasks: dict[str, asyncio.Task]) -> list[str]:
    """The queries that have had their turn."""
    await settled()
    return [query_id for query_id, task in tasks.items() if task.done()]


async def caches(controller) -> list[str]:
    """The GPUs that there are."""
    return [tier.instance for tier in (await controller.stats()).tiers if tier.tier is GPU]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def engines():
    return Engines()


@pytest.fixture
def build(clock, engines):
    with checked_controllers(clock, executor=engines, policy="LRU") as build:
        yield partial(build, max_running=1)


# Those that wait


async def test_who_waits_for_a_retired_instance_waits_for_another_in_the_order_of_arrival(build):
    controller = build("one", "two", max_queued=9, reorder_window=0)
    for query_id in ("on one", "on two"):
        await controller.admit(ask(query_id, question=100))
    tasks = {name: await waiting(controller, ask(name, question=9 - size)) for size, name in enumerate("abcdef")}
    at_two = list(controller._scheduler.instances.states["two"].queue)
    controller.instances.retire("one")
    controller.check_integrity()
    assert await come(tasks) == []
    ended, turns = "on two", []
    while len(turns) < 6:
        await controller.complete(report(ended))
        (ended,) = [name for name in await come(tasks) if name not in turns]
        assert tasks[ended].result().instance == "two"
        turns.append(ended)
    # Behind those that wait there already, and among themselves as they came.
    assert 0 < len(at_two) < 6
    assert turns == at_two + [name for name in "abcdef" if name not in at_two]
    await controller.complete(report(ended))
    await controller.complete(report("on one"))


async def test_who_waited_begins_at_once_where_there_is_room(build):
    controller = build("one")
    await controller.admit(ask("runs"))
    tasks = {name: await waiting(controller, ask(name)) for name in "ab"}
    controller.instances.add("two", "boot-2", [])
    assert await come(tasks) == []
    controller.instances.retire("one")
    assert await come(tasks) == ["a"]
    plan = await tasks["a"]
    assert (plan.instance, plan.boot) == ("two", "boot-2")
    await controller.complete(report("a"))
    assert (await tasks["b"]).instance == "two"
    await controller.complete(report("b"))


async def test_the_last_that_is_retired_is_where_requests_wait_for_the_next(build):
    controller = build("one", max_queued=3, reorder_window=0)
    await controller.admit(ask("runs"))
    tasks = {"a": await waiting(controller, ask("a", "xyz"))}
    controller.instances.retire("one")
    controller.check_integrity()
    tasks |= {name: await waiting(controller, ask(name)) for name in "bc"}
    with pytest.raises(Overloaded):
        await controller.admit(ask("d"))
    await controller.complete(report("runs"))
    assert await come(tasks) == []
    controller.expire_leases()
    assert await caches(controller) == ["one"]
    controller.instances.add("two", "", [])
    controller.check_integrity()
    assert await come(tasks) == ["a"]
    for name in "abc":
        assert (await tasks[name]).instance == "two"
        await controller.complete(report(name))
    controller.expire_leases()
    assert await caches(controller) == ["two"]


async def test_with_several_retired_and_none_there_who_came_first_is_first_with_the_next(build):
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
    (refused,) = [name for name in await come(tasks) if tasks[name].exception() is not None]
    assert refused == "d", "it came last, and has one cache less to wait"
    turns = []
    while len(turns) < 3:
        (name,) = [name for name in await come(tasks) if name not in (*turns, refused)]
        await controller.complete(report(name))
        turns.append(name)
    assert turns == ["a", "b", "c"]


async def test_a_wait_that_is_cancelled_as_it_is_moved_ends_once(build):
    controller = build("one", "two")
    for query_id in ("on one", "on two"):
        await controller.admit(ask(query_id, question=9))
    tasks = {name: await waiting(controller, ask(name)) for name in "abcd"}
    for name in "ab":
        tasks[name].cancel()
    controller.instances.retire("one")
    controller.check_integrity()
    for name in "cd":
        tasks[name].cancel()
    for task in tasks.values():
        with pytest.raises(asyncio.CancelledError):
            await task
    stats = await controller.stats()
    assert (stats.queued, stats.running, stats.cancelled) == (0, 2, 4)


async def test_who_finds_no_place_with_the_others_is_refused_like_anybody(build):
    controller = build("one", "two", max_queued=1)
    for query_id in ("on one", "on two"):
        await controller.admit(ask(query_id, question=9))
    tasks = {name: await waiting(controller, ask(name)) for name in "ab"}
    controller.instances.retire("one")
    refused = [name for name in await come(tasks) if isinstance(tasks[name].exception(), Overloaded)]
    assert len(refused) == 1
    assert (await controller.stats()).queued == 1


async def test_an_instance_that_comes_back_before_it_ended_goes_on(build):
    controller = build("one")
    controller.instances.boots["one"] = "boot"
    await controller.admit(ask("runs", "ab"))
    tasks = {name: await waiting(controller, ask(name, "ab")) for name in "xy"}
    controller.instances.retire("one")
    await controller.complete(report("runs"))
    assert await come(tasks) == []
    controller.instances.reinstate("one")
    assert await come(tasks) == ["x"]
    plan = await tasks["x"]
    assert (plan.boot, [node.source for node in plan.nodes]) == ("boot", [GPU, GPU])
    await controller.complete(report("x"))
    assert await come(tasks) == ["x", "y"]
    assert not controller.instances.retired


async def test_what_waits_for_others_goes_to_the_first_that_comes_back(build):
    controller = build("one", "two")
    for query_id in ("on one", "on two"):
        await controller.admit(ask(query_id, question=9))
    tasks = {name: await waiting(controller, ask(name, question=9)) for name in "ab"}
    for instance in ("one", "two"):
        controller.instances.retire(instance)
    for query_id in ("on one", "on two"):
        await controller.complete(report(query_id))
    controller.instances.reinstate("two")
    controller.check_integrity()
    (first,) = await come(tasks)
    await controller.complete(report(first))
    assert {(await task).instance for task in tasks.values()} == {"two"}


async def test_what_waits_for_retired_ones_goes_to_the_one_that_restarts(build):
    controller = build("one", "two")
    for query_id in ("on one", "on two"):
        await controller.admit(ask(query_id, question=9))
    task = await waiting(controller, ask("waits", question=9))
    for instance in ("one", "two"):
        controller.instances.retire(instance)
    controller.instances.restart("two", "reboot", [])
    controller.check_integrity()
    assert (await task).instance == "two"
    assert controller.instances.retired == {"one"}


# Those that run


async def test_what_runs_on_a_retired_instance_ends_as_usual_and_then_it_is_forgotten(build):
    controller = build("one", "two", max_running=9)
    controller.instances.boots |= {"one": "boot-1", "two": "boot-2"}
    plan = await controller.admit(ask("runs", "ab"))
    assert (plan.instance, plan.boot) == ("one", "boot-1")
    controller.instances.retire("one")
    assert (controller.instances.retired, set(controller.instances.boots)) == ({"one"}, {"one", "two"})
    await controller.prefilled("runs")
    assert await cached(controller, "ab") == [None, None], "its GPU's cache is used again"
    assert await caches(controller) == ["one", "two"]
    await controller.complete(report("runs"))
    controller.expire_leases()
    assert (controller.instances.retired, set(controller.instances.boots)) == (set(), {"two"})
    assert await caches(controller) == ["two"]
    assert not any("one" in where for where in _where(await controller.tree(9, 1000)))
    stats = await controller.stats()
    assert (stats.running, stats.completed) == (0, 1)
    with pytest.raises(UnknownInstance):
        controller.instances.retire("one")
    with pytest.raises(UnknownInstance):
        controller.instances.reinstate("one")


def _where(view) -> list[str]:
    nodes = [node for nodes in view.namespaces.values() for node in nodes]
    for node in nodes:
        nodes += node.children
    return [tier for node in nodes for tier in node.places]


async def test_an_idle_instance_is_forgotten_at_once_unless_it_is_the_last(build):
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


async def test_a_lost_lease_does_not_keep_a_retired_instance(build, clock):
    controller = build("one", "two")
    await controller.admit(ask("lost", "a"))
    controller.instances.retire("one")
    clock.now = LEASE_S
    controller.expire_leases()
    assert await caches(controller) == ["two"]
    with pytest.raises(UnknownPlan):
        await controller.complete(report("lost"))


async def test_a_retired_instance_gets_nothing_more(build, engines):
    controller = build("one", "two", max_running=2)
    await fill(controller, "x")
    plan = await controller.admit(ask("runs", "x"))
    assert (plan.instance, plan.nodes[0].source) == ("one", GPU)
    await settled()
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
    # What it has is nothing to whom it is not given to; and where none is idle, nothing is warmed up.
    warmed = await controller.warm(ask("warm", "x"))
    assert warmed.instance == "two"
    assert await controller.warm(ask("again", "x")) is None
    await controller.complete(report("warm"))
    await controller.complete(report("runs"))
    await settled()
    assert engines.asked("one") == []


async def test_a_speculation_on_a_retired_instance_can_be_confirmed_and_ends_well(build):
    controller = build("one", "two")
    await controller.on_candidates("query", ["a"], final=False)
    plan = await controller.speculate("query", ["a"], ask("query~1", "a"))
    assert plan.instance == "one"
    controller.instances.retire("one")
    controller.check_integrity()
    assert await controller.on_candidates("query", ["a"], final=True) is SpeculationDecision.KEEP
    controller.check_integrity()
    assert (await controller.stats()).running == 1
    await controller.prefilled("query~1")
    await controller.complete(report("query~1"))
    controller.expire_leases()
    assert await caches(controller) == ["two"]


async def test_a_speculation_on_a_retired_instance_can_be_dropped_and_ends_well(build):
    controller = build("one", "two")
    await controller.on_candidates("query", ["a"], final=False)
    await controller.speculate("query", ["a"], ask("query~1", "a"))
    controller.instances.retire("one")
    assert await controller.on_candidates("query", ["b"], final=True) is SpeculationDecision.DROP
    await controller.complete(report("query~1", PlanOutcome.CANCELLED, computed=0))
    controller.expire_leases()
    assert await caches(controller) == ["two"]


async def test_what_is_prepared_on_a_retired_instance_is_no_hindrance_elsewhere(build, engines):
    controller = build("one", prepare_after_s=0.0)
    await controller.admit(ask("on one", "x"))
    await controller.prefilled("on one")
    task = await waiting(controller, ask("waits", "ab"))
    await settled()
    (begun,) = engines.prepared
    assert begun.instance == "one"
    controller.instances.retire("one")
    controller.check_integrity()
    controller.instances.add("two", "", [])
    assert (await task).instance == "two"
    await engines.prefilled(begun.query_id)
    await controller.complete(report("on one"))
    controller.expire_leases()
    assert await caches(controller) == ["two"]
    await controller.complete(report("waits"))
    controller.check_integrity()


async def test_who_was_moved_while_it_was_prepared_has_its_turn_without_waiting_for_that(build, engines):
    controller = build("one", "two", prepare_after_s=0.0)
    for query_id in ("on one", "on two"):
        await controller.admit(ask(query_id, question=9))
        await controller.prefilled(query_id)
    task = await waiting(controller, ask("waits", "ab"))
    await settled()
    (begun,) = engines.prepared
    controller.instances.retire(begun.instance)
    other = "two" if begun.instance == "one" else "one"
    await controller.complete(report(f"on {other}"))
    assert (await task).instance == other
    await engines.prefilled(begun.query_id)
    await controller.complete(report("waits"))


# Orders


async def test_deleting_and_clearing_and_persisting_do_not_wait_for_a_retired_instance(build, engines):
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


async def test_an_instance_that_retires_before_its_orders_can_be_delivered_is_spared_them(build, engines):
    controller = build("one", "two", max_running=9, disk=100, swap="write_through")
    held = engines.hold("one")
    await controller.admit(ask("on one", "ab"))
    await controller.prefilled("on one")
    await settled()
    deletion = asyncio.create_task(controller.delete_document(DocumentDeletion(("z",))))
    await settled()
    controller.instances.retire("one")
    await controller.complete(report("on one"))
    controller.expire_leases()
    assert await caches(controller) == ["two"]
    engines.lost = [LostCopy(key("a"), GPU)]
    held.set()
    async with asyncio.timeout(5):
        assert await deletion == 0
    assert [orders.forget for orders in engines.asked("one")] == [()]
    assert [orders.forget for orders in engines.asked("two")] == [(("tenant", "z"),)]


async def test_a_delivery_that_fails_after_its_instance_is_gone_loses_no_order_on_shared_tiers(build, engines):
    controller = build("one", "two", host=100)
    controller.recovery.restore([_held(HOST, "a", 0)])
    held = engines.hold("one"), engines.hold("two")
    deletion = asyncio.create_task(controller.delete_document(DocumentDeletion(("a",))))
    await settled()
    controller.instances.retire("one")
    assert await caches(controller) == ["two"]
    engines.gone.add("one")
    for instance in held:
        instance.set()
    with pytest.raises(EngineDied):
        await deletion
    await controller.delete_document(DocumentDeletion(("a",)))
    assert [move.source for move in engines.moves("two")] == [HOST]


def _held(tier: Tier, documents: str, first_page: int, instance: str | None = None) -> ResidencyReport:
    pages = Pages(tuple(range(first_page, first_page + TOKENS)), 9) if tier is HOST else None
    return ResidencyReport(tier, (HeldNode("tenant", tuple(documents), TOKENS, pages),), instance)


@pytest.mark.parametrize("executor", [None, "engines"])
async def test_orders_that_a_retired_instance_took_along_are_carried_out_by_others(build, engines, executor):
    controller = build("one", "two", host=100, executor=engines if executor else None)
    controller.recovery.restore([_held(HOST, "a", 0)])
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
    await settled()
    done = engines.moves(other) if executor else list((await controller.admit(ask("next"))).moves)
    assert [(move.node, move.source) for move in done] == [(key("a"), HOST)]


async def test_a_copy_that_was_to_be_made_by_an_instance_that_ended_is_not_believed_in(build):
    controller = build("one", host=100, swap="write_through", executor=None)
    await fill(controller, "a")
    assert _where(await controller.tree(1, 1000)) == ["gpu@one", "host"]
    controller.instances.add("two", "", [])
    controller.instances.retire("one")
    assert _where(await controller.tree(1, 1000)) == []
    assert await cached(controller, "a") == [None]


# Instances that are added, and those to avoid


async def test_a_new_instance_brings_what_it_holds(build):
    controller = build("one", host=100)
    await fill(controller, "a")
    result = controller.instances.add("two", "boot-2", [_held(GPU, "b", 0, "two"), _held(HOST, "c", 0)])
    assert (result.restored, result.refused) == (2, 0)
    plan = await controller.admit(ask("query", "b"))
    assert (plan.instance, [node.source for node in plan.nodes], plan.boot) == ("two", [GPU], "boot-2")
    await controller.complete(report("query"))
    assert await cached(controller, "c") == [HOST]


async def test_a_new_instance_whose_report_cannot_be_true_is_there_and_empty(build):
    controller = build("one")
    await controller.admit(ask("runs", question=9))
    task = await waiting(controller, ask("waits", question=9))
    controller.instances.retire("one")
    with pytest.raises(InvalidRequest, match="at least one token"):
        controller.instances.add("two", "boot", [ResidencyReport(GPU, (HeldNode("t", ("a",), 0),), "two")])
    assert (await task).instance == "two"
    assert controller.instances.boots["two"] == "boot"


def avoiding(query_id: str, *instances: str, documents: str = ""):
    return msgspec.structs.replace(ask(query_id, documents, question=9), avoid=instances)


async def test_a_request_is_not_given_to_who_it_avoids(build):
    controller = build("one", "two")
    await fill(controller, "a")
    assert (await controller.admit(avoiding("query", "one", documents="a"))).instance == "two"
    tasks = {"waits": await waiting(controller, avoiding("waits", "one"))}
    assert await come(tasks) == [], "one is free, and to be avoided"
    await controller.complete(report("query"))
    assert (await tasks["waits"]).instance == "two"
    await controller.complete(report("waits"))


async def test_where_there_is_none_but_those_to_avoid_that_is_said_at_once(build):
    controller = build("one", "two")
    with pytest.raises(EngineDied, match="no other instance"):
        await controller.admit(avoiding("query", "one", "two"))
    await controller.admit(ask("on one", question=99))
    controller.instances.retire("one")
    with pytest.raises(EngineDied, match="no other instance"):
        await controller.admit(avoiding("query", "two"))
    stats = await controller.stats()
    assert (stats.queued, stats.running, stats.rejected) == (0, 1, 0)


async def test_who_avoids_an_instance_does_so_when_it_has_to_wait_again(build):
    controller = build("one", "two")
    assert {(await controller.admit(ask(name, question=9))).instance for name in "ab"} == {"one", "two"}
    task = await waiting(controller, avoiding("waits", "one"))
    controller.instances.retire("two")
    with pytest.raises(EngineDied, match="no other instance"):
        await task
    controller.check_integrity()


# Aloof ones, and shared tiers whose last instance is gone


async def test_an_isolated_instance_has_its_gpu_alone(build, engines):
    controller = build("one", host=100, disk=100, max_running=9, swap="write_through")
    await fill(controller, "a")
    await settled()
    controller.instances.add("far", "", [], isolated=True)
    assert controller.instances.sharing == {"one"}
    controller.instances.retire("one")
    assert await caches(controller) == ["far"]
    assert await cached(controller, "a") == [None]
    await fill(controller, "a")
    assert await cached(controller, "a") == [GPU]
    await settled()
    await controller.persist()
    # What is shared is dropped by who reaches it, and nobody does now.
    await controller.delete_document(DocumentDeletion(("a",)))
    assert {(move.source, move.target) for move in engines.moves("far")} == {(GPU, None)}
    controller.instances.add("near", "", [])
    await settled()
    assert {(move.node, move.source) for move in engines.moves("near")} == {(key("a"), HOST), (key("a"), DISK)}


async def test_an_isolated_instance_that_restarts_is_isolated_if_it_says_so(build):
    controller = build("one", host=100, disk=100)
    controller.instances.add("far", "", [], isolated=True)
    controller.instances.restart("far", "reboot", [], isolated=True)
    assert controller.instances.sharing == {"one"}
    controller.instances.restart("far", "reboot", [])
    assert controller.instances.sharing == {"one", "far"}


async def test_lost_shared_tiers_are_the_next_ones(build):
    controller = build("one", gpu=2 * TOKENS, host=4 * TOKENS, executor=None)
    await fill(controller, "ab", "cd")
    assert await cached(controller, "ab") == [HOST, HOST]
    running = await controller.admit(ask("runs", "ab"))
    assert [node.source for node in running.nodes] == [HOST, HOST]
    controller.instances.retire("one")
    controller.instances.replace_shared("")
    controller.check_integrity()
    assert all(tier.used_tokens == 0 for tier in (await controller.stats()).tiers if tier.tier is not GPU)
    controller.instances.add("two", "", [_held(HOST, "x", 0)])
    assert await cached(controller, "x") == [HOST]
    await fill(controller, "cd", "ef")
    assert await cached(controller, "cd") == [HOST, HOST]
    await controller.complete(report("runs", lost=[LostCopy(key("c"), HOST)]))
    assert await cached(controller, "cd") == [HOST, HOST]
    controller.expire_leases()
    assert await caches(controller) == ["two"]
    moves = (await controller.admit(ask("next"))).moves
    assert not {move.node for move in moves} & {key("a"), key("ab")}
