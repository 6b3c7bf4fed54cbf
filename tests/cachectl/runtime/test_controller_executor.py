"""Orders outside of plans: deliveries, deletions and restarts reach the engines, one at a time, and are never lost."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from controller_under_test import (
    LEASE_S,
    TOKENS,
    Clock,
    ask,
    at,
    cached,
    checked_controllers,
    fill,
    key,
    report,
    waiting,
)

from protocol.cache import CachePath, DocumentDeletion, RestoreResult
from protocol.errors import DeadlineExceeded, EngineDied, EngineNotReady, InvalidRequest, UnknownInstance, UnknownPlan
from protocol.kv import HeldNode, LostCopy, Move, Orders, Pages, ResidencyReport, with_adapter
from protocol.plans import NotWarmed, PlanOutcome
from protocol.tiers import Tier

GPU, HOST, DISK = Tier


class Engines:
    """An executor that records orders. It waits while it is ``held``, and raises ``gone`` if that is set."""

    def __init__(self) -> None:
        self.done: list[tuple[str, Orders]] = []
        self.lost: list[LostCopy] = []
        self.gone: Exception | None = None
        self.tried = 0
        self.busy: list[str] = []
        self._free = asyncio.Event()
        self._free.set()
        self._changed = asyncio.Condition()

    async def carry_out(self, instance: str, orders: Orders) -> list[LostCopy]:
        self.tried += 1
        assert instance not in self.busy, "an instance has two deliveries at once"
        self.busy.append(instance)
        await self._tell()
        try:
            await self._free.wait()
            if self.gone is not None:
                raise self.gone
            self.done.append((instance, orders))
            lost, self.lost = self.lost, []
            return lost
        finally:
            self.busy.remove(instance)
            await self._tell()

    @property
    def moves(self) -> list[Move]:
        return [move for _, orders in self.done for move in orders.moves]

    @asynccontextmanager
    async def held(self):
        self._free.clear()
        yield
        self._free.set()

    async def until(self, condition) -> None:
        async with asyncio.timeout(5), self._changed:
            await self._changed.wait_for(condition)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def drop(documents: str, tier: Tier = GPU, pages: Pages | None = None) -> Move:
    return Move(key(documents), TOKENS, tier, None, "one" if tier is GPU else None, pages=pages)


async def begun(awaitable) -> asyncio.Task:
    """A task that has started, and has had time to run until it waits."""
    task = asyncio.create_task(awaitable)
    for _ in range(20):
        await asyncio.sleep(0)
    return task


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def engines():
    return Engines()


@pytest.fixture
def build(clock, engines):
    with checked_controllers(clock, executor=engines, policy="LRU", max_running=9) as build:
        yield build


# The first token


async def test_other_queries_find_documents_from_the_first_token_on(build):
    controller = build()
    await controller.admit(ask("runs", "ab"))
    assert await cached(controller, "ab") == [None, None]
    await controller.prefilled("runs", [LostCopy(key("ab"), GPU)])
    assert await cached(controller, "ab") == [GPU, None]
    await controller.complete(report("runs"))
    for query_id in ("runs", "never"):
        with pytest.raises(UnknownPlan):
            await controller.prefilled(query_id)


async def test_a_document_is_loaded_only_if_that_is_faster_than_computing(build):
    for load_s, source in ((0.5, HOST), (2.0, None)):
        controller = build(gpu=TOKENS, host=100, load_s=load_s, executor=None)
        await fill(controller, "a", "b")
        assert await cached(controller, "a") == [source]


async def test_planned_tokens_are_counted_by_source_tier(build):
    controller = build(gpu=2 * TOKENS, host=100, executor=None)
    await fill(controller, "a", "bc", "ab")
    stats = await controller.stats()
    assert stats.planned_from == {GPU: 0, HOST: TOKENS, DISK: 0}
    assert (stats.planned_cached_tokens, stats.planned_tokens) == (TOKENS, 5 * TOKENS)


async def test_a_plan_names_spare_copies_but_none_of_its_own(build):
    controller = build("one", "two")
    await fill(controller, *"cab", "de")
    assert (await controller.admit(ask("query", "ax"))).spare == (key("c"), key("b"), key("de"))
    await fill(controller, *(chr(0x1000 + number) for number in range(30)))
    assert len((await controller.admit(ask("more"))).spare) == 16


# Deliveries


async def test_write_through_copies_are_delivered_at_once(build, engines):
    controller = build(host=100, swap="write_through")
    await controller.admit(ask("runs", "a"))
    await controller.prefilled("runs")
    await engines.until(lambda: engines.done and not engines.busy)
    pages = Pages(tuple(range(TOKENS)), 1)
    assert engines.done == [("one", Orders((Move(key("a"), TOKENS, GPU, HOST, "one", evict=False, pages=pages),)))]


async def test_a_copy_that_could_not_be_made_is_not_planned(build, engines):
    controller = build(gpu=TOKENS, host=100, swap="write_through")
    engines.lost = [LostCopy(key("a"), HOST)]
    await fill(controller, "a")
    [node] = (await controller.tree(1, 1000)).namespaces["tenant"]
    assert node.places == ("gpu@one", "host")
    await engines.until(lambda: engines.done and not engines.busy)
    await begun(asyncio.sleep(0))
    [node] = (await controller.tree(1, 1000)).namespaces["tenant"]
    assert node.places == ("gpu@one",)


async def test_moves_of_a_plan_that_ended_before_its_first_token_are_delivered(build, engines, clock):
    controller = build(gpu=TOKENS, host=100)
    await fill(controller, "a")
    plan = await controller.admit(ask("runs", "b"))
    assert [order.node for order in plan.moves] == [key("a")]
    await controller.complete(report("runs", computed=0))
    await engines.until(lambda: engines.moves == list(plan.moves))
    plan = await controller.admit(ask("lost", "b"))
    assert plan.moves == ()


async def test_moves_of_a_lost_plan_are_delivered_when_its_lease_expires(build, engines, clock):
    controller = build(gpu=TOKENS, host=100)
    await fill(controller, "a")
    plan = await controller.admit(ask("lost", "b"))
    clock.now = LEASE_S
    controller.expire_leases()
    await engines.until(lambda: engines.moves == list(plan.moves))


async def test_moves_that_cannot_be_delivered_stay_pending_until_the_next_try(build, engines):
    controller = build(gpu=TOKENS, host=100)
    await fill(controller, "a")
    engines.gone = EngineNotReady("the engine is loading")
    plan = await controller.admit(ask("fails", "b"))
    await controller.complete(report("fails", computed=0))
    await engines.until(lambda: engines.tried == 1 and not engines.busy)
    await begun(asyncio.sleep(0))
    assert engines.tried == 1, "a failed delivery is not retried by itself"
    engines.gone = ValueError("a defect is no reason to lose anything")
    controller.expire_leases()
    await engines.until(lambda: engines.tried == 2 and not engines.busy)
    await begun(asyncio.sleep(0))
    engines.gone = None
    controller.expire_leases()
    await engines.until(lambda: engines.moves == list(plan.moves))


async def test_moves_that_become_pending_during_a_delivery_go_with_the_next(build, engines):
    controller = build(host=100, swap="write_through")
    async with engines.held():
        await fill(controller, "a")
        await engines.until(lambda: engines.busy)
        await controller.admit(ask("runs", "b"))
        await controller.prefilled("runs")
        controller.expire_leases()
        await begun(asyncio.sleep(0))
        assert engines.tried == 1
    await engines.until(lambda: len(engines.done) == 2)
    assert [order.node for order in engines.moves] == [key("a"), key("b")]


# Deletion


async def test_a_deleted_document_is_dropped_and_forgotten_before_the_call_returns(build, engines):
    controller = build("one", "two")
    await fill(controller, "ab", "c")
    assert await controller.delete_document(DocumentDeletion(("a", "x"), "tenant")) == 2
    forget = (("tenant", "a"), ("tenant", "x"))
    assert {instance: orders.forget for instance, orders in engines.done} == {"one": forget, "two": forget}
    assert sorted(order.node for order in engines.moves) == sorted([key("a"), key("ab")])


async def test_a_deletion_without_a_namespace_covers_all_namespaces_seen(build, engines):
    controller = build()
    await fill(controller, "a", namespace="x")
    await fill(controller, "b", namespace="y")
    controller.recovery.restore([ResidencyReport(GPU, (HeldNode("z", ("a",), TOKENS),), "one")])
    await controller.delete_document(DocumentDeletion(("a",)))
    assert [orders.forget for _, orders in engines.done] == [(("x", "a"), ("y", "a"), ("z", "a"))]


@pytest.mark.parametrize("fingerprint", ["", "of the weights"])
async def test_a_tenants_deletion_covers_the_namespaces_of_its_adapters(build, engines, fingerprint):
    controller = build(fingerprint=fingerprint, max_running=1)
    adapted, strangers = with_adapter("tenant", "ab" * 16), with_adapter("other", "ab" * 16)
    for namespace in (adapted, strangers):
        await fill(controller, "a", namespace=namespace)
    await controller.admit(ask("uses", "a", namespace=adapted))
    deletion = await begun(controller.delete_document(DocumentDeletion(("a",), "tenant", *at(10))))
    computes = await waiting(controller, ask("computes", "a", namespace=adapted))
    assert not deletion.done()
    await controller.complete(report("uses"))
    assert [node.kept for node in (await computes).nodes] == [None], "the document is not kept during its deletion"
    await controller.complete(report("computes"))
    assert await deletion == 1
    # Engines forget it in all namespaces of the tenant.
    assert {orders.forget for _, orders in engines.done if orders.forget} == {(("tenant", "a"),)}
    # A search before the deletion brings nothing back, whichever model answers.
    for number, namespace in enumerate((adapted, with_adapter("tenant", "ef" * 16))):
        plan = await controller.admit(ask(str(number), "a", namespace=namespace, found_at=at(9)))
        assert plan.unshared
        await controller.complete(report(str(number)))
    kept = await controller.admit(ask("a stranger's", "a", namespace=strangers, found_at=at(9)))
    assert [node.loaded_from for node in kept.nodes] == [GPU]
    await controller.complete(report("a stranger's"))


async def test_a_deletion_waits_only_for_queries_that_use_the_document(build, engines):
    controller = build(max_running=2)
    await fill(controller, "a")
    await controller.admit(ask("uses", "ab"))
    await controller.admit(ask("other", "c"))
    waits = await waiting(controller, ask("waits", "xa"))
    deletion = await begun(controller.delete_document(DocumentDeletion(("a",), "tenant")))
    assert not deletion.done()
    await controller.complete(report("uses"))
    plan = await waits
    assert [node.kept for node in plan.nodes] == [GPU, None], "the document is not kept during its deletion"
    await begun(asyncio.sleep(0))
    assert not deletion.done()
    await controller.complete(report("waits"))
    assert await deletion == 2
    assert await cached(controller, "a") == [None]
    # Forgotten twice, because what "uses" held could only be dropped after its end.
    assert [orders.forget for _, orders in engines.done][:1] == [(("tenant", "a"),)]
    assert engines.done[-1][1].forget == (("tenant", "a"),)
    assert {drop("a"), drop("ab")} <= {*engines.moves, *plan.moves}


async def test_a_document_deleted_during_its_prefill_is_not_kept(build, engines):
    controller = build(host=100, swap="write_through")
    await controller.admit(ask("computes", "ab"))
    deletion = await begun(controller.delete_document(DocumentDeletion(("a",), "tenant")))
    await controller.prefilled("computes")
    assert await cached(controller, "ab") == [None, None]
    await controller.complete(report("computes"))
    assert await deletion == 2
    assert await cached(controller, "ab") == [None, None]
    assert all(order.target is None for order in engines.moves)
    await fill(controller, "a")
    assert await cached(controller, "a") == [GPU]


async def test_a_query_that_searched_before_a_deletion_keeps_nothing_of_the_document(build):
    controller = build()
    await fill(controller, "ab")
    await controller.delete_document(DocumentDeletion(("b",), "tenant", *at(10)))
    late = await controller.admit(ask("late", "ab", found_at=at(9)))
    assert (late.nodes, late.moves, late.unshared) == ((), (), True)
    assert late.prompt == ask("late", "ab").prompt
    await controller.complete(report("late"))
    assert await cached(controller, "ab") == [GPU, None]
    # Searches after the deletion, other documents and other namespaces are not affected.
    for query_id, asked in (
        ("anew", ask("anew", "ab", found_at=at(10))),
        ("another", ask("another", "a", found_at=at(9))),
        ("a stranger's", ask("a stranger's", "ab", namespace="other", found_at=at(9))),
    ):
        plan = await controller.admit(asked)
        assert not plan.unshared
        assert len(plan.nodes) == len(asked.prompt.documents)
        await controller.complete(report(query_id))


async def test_warming_does_not_bring_a_deleted_document_back(build):
    controller = build()
    await controller.delete_document(DocumentDeletion(("a",), None, *at(1)))
    assert await controller.warm(ask("warm", "a", found_at=at(0))) is NotWarmed.OUTDATED
    assert await controller.warm(ask("warm", "a")) is not None


async def test_a_deletion_waits_for_a_plan_that_may_still_copy_the_document(build, engines):
    controller = build(gpu=TOKENS, host=100)
    await fill(controller, "a")
    plan = await controller.admit(ask("moves", "b"))
    assert plan.moves[0].node == key("a")
    deletion = await begun(controller.delete_document(DocumentDeletion(("a",))))
    assert not deletion.done()
    await controller.complete(report("moves"))
    assert await deletion == 1


async def test_a_deletion_that_times_out_can_be_continued(build, engines):
    controller = build(delete_timeout_s=0.01)
    await fill(controller, "a")
    await controller.admit(ask("uses", "a"))
    with pytest.raises(DeadlineExceeded):
        await controller.delete_document(DocumentDeletion(("a",)))
    assert await cached(controller, "a") == [None]
    await controller.complete(report("uses"))
    assert await controller.delete_document(DocumentDeletion(("a",))) == 0
    assert engines.moves == [drop("a")]


async def test_a_deletion_fails_without_losing_moves_if_an_instance_is_unreachable(build, engines):
    controller = build()
    await fill(controller, "a")
    engines.gone = EngineNotReady("the engine is loading")
    with pytest.raises(EngineNotReady):
        await controller.delete_document(DocumentDeletion(("a",)))
    assert await cached(controller, "a") == [None]
    engines.gone = None
    await controller.delete_document(DocumentDeletion(("a",)))
    assert drop("a") in engines.moves or drop("a") in (await controller.admit(ask("next"))).moves


async def test_a_deletion_waits_for_a_running_delivery(build, engines):
    controller = build(host=100, swap="write_through")
    async with engines.held():
        await fill(controller, "a")
        await engines.until(lambda: engines.busy)
        deletion = await begun(controller.delete_document(DocumentDeletion(("a",))))
        assert engines.tried == 1
    assert await deletion == 1
    assert [order.target for order in engines.moves] == [HOST, None, None]


async def test_clearing_drops_everything_before_the_call_returns(build, engines):
    controller = build()
    await fill(controller, "a", "b")
    assert await controller.clear() == 2
    assert set(engines.moves) == {drop("a"), drop("b")}


# Restarts


async def test_a_restarted_engine_has_an_empty_gpu_and_what_it_reports(build):
    controller = build(gpu=TOKENS, host=100, executor=None)
    await fill(controller, "a", "b")
    pages = Pages(tuple(range(50, 50 + TOKENS)), 9)
    reports = [ResidencyReport(HOST, (HeldNode("tenant", ("c",), TOKENS, pages),))]
    assert controller.instances.restart("one", "reboot", reports) == RestoreResult(1, 0)
    assert await cached(controller, "b") == [None]
    assert await cached(controller, "a") == [HOST]
    assert await cached(controller, "c") == [HOST]


async def test_a_restart_fails_running_plans_and_keeps_waiting_queries(build):
    controller = build(max_running=1)
    await controller.admit(ask("runs", "a"))
    first, second = await waiting(controller, ask("first")), await waiting(controller, ask("second"))
    controller.instances.restart("one", "reboot", [])
    with pytest.raises(UnknownPlan):
        await controller.complete(report("runs"))
    assert (await first).query_id == "first"
    stats = await controller.stats()
    assert (stats.running, stats.queued, stats.failed) == (1, 1, 1)
    await controller.complete(report("first"))
    assert (await second).query_id == "second"


async def test_a_turn_that_comes_as_its_engine_is_lost_raises(build):
    controller = build(max_running=1)
    await controller.admit(ask("runs"))
    task = await waiting(controller, ask("waits"))
    await controller.complete(report("runs"))  # makes it the turn of "waits" ...
    controller.instances.restart("one", "reboot", [])  # ... whose task has not run yet
    with pytest.raises(EngineDied):
        await task
    assert (await controller.stats()).running == 0


async def test_a_restart_lets_a_waiting_deletion_return(build):
    controller = build()
    await controller.admit(ask("uses", "a"))
    deletion = await begun(controller.delete_document(DocumentDeletion(("a",))))
    assert not deletion.done()
    controller.instances.restart("one", "reboot", [])
    assert await deletion == 1


async def test_an_invalid_restart_is_refused(build):
    controller = build(max_running=1)
    await controller.admit(ask("runs"))
    task = await waiting(controller, ask("waits"))
    with pytest.raises(UnknownInstance):
        controller.instances.restart("two", "reboot", [])
    assert (await controller.stats()).running == 1
    with pytest.raises(InvalidRequest):
        controller.instances.restart("one", "reboot", [ResidencyReport(HOST, (HeldNode("tenant", (), 1),))])
    assert (await task).query_id == "waits"


# Fingerprints


async def test_a_fingerprint_is_part_of_every_key_and_of_no_namespace_shown(build, engines):
    controller = build(fingerprint="llama")
    plan = await controller.admit(ask("query", "ab"))
    assert plan.namespace == "tenant"
    assert [node.key for node in plan.nodes] == [key("a", "llama/tenant"), key("ab", "llama/tenant")]
    await controller.complete(report("query"))
    assert list((await controller.tree(1, 1000)).namespaces) == ["tenant"]
    await controller.pin(CachePath("tenant", ("a",)))
    await controller.pin(CachePath("tenant", ("a",)), pinned=False)
    assert await controller.delete_document(DocumentDeletion(("b",), "tenant")) == 1
    assert engines.done[-1][1].forget == (("tenant", "b"),)
    controller.recovery.restore([ResidencyReport(GPU, (HeldNode("tenant", ("z",), TOKENS),), "one")])
    assert await cached(controller, "z") == [GPU]


# Waits and persistence


async def test_a_cancelled_wait_is_counted_once(build):
    controller = build(max_running=1)
    await controller.admit(ask("runs"))
    for ended_by_report in (False, True):
        task = await waiting(controller, ask("waits"))
        if ended_by_report:
            await controller.complete(report("waits", PlanOutcome.CANCELLED, computed=0))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (await controller.stats()).cancelled == 2


async def test_persisting_copies_every_node_to_disk_once(build, engines):
    controller = build(gpu=20, host=20, disk=40)
    await fill(controller, "ab", "cd")
    await controller.persist()
    copied = [move for move in engines.moves if move.target is DISK]
    assert {move.node for move in copied} == {key("a"), key("ab"), key("c"), key("cd")}
    assert not any(move.evict for move in copied)
    # Parents first: after a crash in between, a child without its parent would be useless.
    order = [move.node for move in copied]
    assert order.index(key("a")) < order.index(key("ab"))
    assert order.index(key("c")) < order.index(key("cd"))
    before = len(engines.done)
    await controller.persist()
    assert len(engines.done) == before, "nodes on disk are not copied again"


async def test_persisting_to_a_small_disk_copies_what_fits(build, engines):
    controller = build(gpu=40, disk=20)
    await fill(controller, "ab", "cd")
    await controller.persist()
    assert len([move for move in engines.moves if move.target is DISK and not move.evict]) >= 2
    assert (await controller.stats()).tiers[-1].used_tokens == 20


async def test_copies_that_an_ended_speculation_never_computed_are_not_dropped(build):
    controller = build()
    await controller.speculate("query", "abc", ask("query~1", "abc"))
    lost = tuple(LostCopy(key("abc"[: depth + 1]), GPU) for depth in (1, 2))
    await controller.prefilled("query~1", lost)
    await controller.complete(report("query~1", PlanOutcome.CANCELLED, computed=15))
    plan = await controller.admit(ask("query", "abc"))
    assert [node.source for node in plan.nodes] == [GPU, None, None]
    assert plan.moves == ()
