"""Several controllers as one, over the same instances."""

import asyncio

import msgspec
import pytest
from controller_integrity import check_integrity
from controller_under_test import TOKENS, Clock, ask, costs, path, report, sources

from cachectl.runtime.controller import Controller, Engines
from cachectl.settings import ControllerSettings
from cachectl.sharding.controller_shard import ControllerShard, shard_of
from cachectl.sharding.sharded_controller import ShardedController
from cachectl.tiers.location import Capacities, KvStorage
from protocol.cache import DocumentDeletion
from protocol.errors import Overloaded, Unavailable, UnknownNode, UnknownPlan
from protocol.kv import HeldNode, LostCopy, Orders, Pages, ResidencyReport
from protocol.plans import DocumentOrder, NotWarmed, PlanOutcome, SpeculationDecision
from protocol.tiers import Tier

GPU, HOST, DISK = Tier
START, KEEP, DROP, WAIT = (
    SpeculationDecision.START,
    SpeculationDecision.KEEP,
    SpeculationDecision.DROP,
    SpeculationDecision.WAIT,
)
COUNT = 3
PAGES = 300


def of_shard(number: int) -> str:
    """A document of this shard."""
    return next(letter for letter in "abcdefghijklmnopqrstuvwxyz" if shard_of(letter, COUNT) == number)


A, B, C = (of_shard(number) for number in range(COUNT))


class Recorder:
    """The executor of all shards: records the orders."""

    def __init__(self) -> None:
        self.orders: list[Orders] = []

    async def carry_out(self, instance: str, orders: Orders) -> tuple[LostCopy, ...]:
        self.orders.append(orders)
        return ()

    async def prefill(self, plan):
        raise NotImplementedError("these tests do not prefetch")


class Cluster:
    """Shards over two instances with host memory of numbered pages."""

    def __init__(self, **settings) -> None:
        self.engines = Recorder()
        self.shards: list[Controller] = []
        clock = Clock()
        for number in range(COUNT):
            shard = ControllerShard(number, COUNT)
            self.shards.append(
                Controller(
                    ControllerSettings(**{"prepare_after_s": None, "policy": "LRU"} | settings),
                    ["one", "two"],
                    clock,
                    Engines(costs()),
                    KvStorage(Capacities(2 * TOKENS, shard.share(PAGES), 0), first_page=shard.first(PAGES)),
                    shard=shard,
                    executor=self.engines,
                )
            )
        self.all = ShardedController(self.shards)

    async def fill(self, *paths: str) -> None:
        for number, documents in enumerate(paths):
            await self.all.admit(ask(f"fill {number}", documents))
            await self.all.complete(report(f"fill {number}"))

    async def nodes(self) -> list[int]:
        return [(await shard.tree(9, 99)).nodes for shard in self.shards]


@pytest.fixture
def cluster():
    cluster = Cluster()
    yield cluster
    for shard in cluster.shards:
        check_integrity(shard)
    assert not cluster.all._of_plan
    assert not cluster.all._guesses
    assert not cluster.all._guessed_for


async def test_each_query_goes_to_the_shard_of_its_first_document(cluster):
    await cluster.fill(A + B, B + C, A + C)
    assert await cluster.nodes() == [3, 2, 0]
    plan = await cluster.all.admit(ask("again", A + B))
    assert sources(plan)[0] is not None
    await cluster.all.prefilled("again")
    await cluster.all.complete(report("again"))


async def test_the_same_path_has_other_keys_in_another_shard(cluster):
    plans = [await cluster.all.admit(ask(f"of {first}", first, system="s")) for first in (A, B)]
    assert plans[0].nodes[0].key != plans[1].nodes[0].key
    assert {plan.namespace for plan in plans} == {"tenant#0", "tenant#1"}
    for first in (A, B):
        await cluster.all.complete(report(f"of {first}"))
    view = await cluster.all.tree(9, 99)
    assert [node.content for node in view.namespaces["tenant"]] == ["s", "s"]
    assert view.nodes == 4


async def test_shards_use_pages_of_their_own(cluster):
    for first in (A, B, C):
        await cluster.fill(*(first + other for other in "qrstuvwxyz"))
    pages: dict[int, set[int]] = {}
    for number, shard in enumerate(cluster.shards):
        host = shard._tree.tiers.locations[""].host
        held = [node.copy_in(host) for node in shard._tree.registry.nodes.values() if node.copy_in(host)]
        assert held
        pages[number] = {page for copy in held for page in copy.pages.numbers}
        part = ControllerShard(number, COUNT)
        assert pages[number] <= set(range(part.first(PAGES), part.first(PAGES) + part.share(PAGES)))


async def test_a_deletion_reaches_every_shard(cluster):
    await cluster.fill(A + B, B + A, C + B)
    assert await cluster.all.delete_document(DocumentDeletion((B,), "tenant")) == 4
    assert await cluster.nodes() == [1, 0, 1]
    forgotten = {each for orders in cluster.engines.orders for each in orders.forget}
    assert forgotten == {(f"tenant#{number}", B) for number in range(COUNT)}
    assert await cluster.all.delete_document(DocumentDeletion((A,), None)) == 1


async def test_one_shards_failure_is_raised_and_the_others_have_deleted(cluster):
    await cluster.fill(A, B)
    broken = cluster.shards[0]
    delete = broken.delete_document

    async def fails(deletion):
        raise Overloaded("away")

    broken.delete_document = fails
    for content in (A, B):
        with pytest.raises(Overloaded):
            await cluster.all.delete_document(DocumentDeletion((content,), None))
    assert await cluster.nodes() == [1, 0, 0]
    broken.delete_document = delete
    assert await cluster.all.delete_document(DocumentDeletion((A,), None)) == 1


async def test_stats_are_added_up(cluster):
    await cluster.fill(A + B, B + C, C)
    running = await cluster.all.admit(ask("runs", A))
    stats = await cluster.all.stats()
    assert (stats.admitted, stats.completed, stats.running) == (4, 3, 1)
    assert {load.instance: load.running for load in stats.instances} == {
        "one": running.instance == "one",
        "two": running.instance == "two",
    }
    assert {tier.place: tier.capacity_tokens for tier in stats.tiers} == {
        "gpu@one": COUNT * 2 * TOKENS,
        "gpu@two": COUNT * 2 * TOKENS,
        "host": PAGES,
    }
    await cluster.all.complete(report("runs"))
    assert await cluster.all.clear() == 5
    assert await cluster.nodes() == [0, 0, 0]


async def test_pins_find_their_shard(cluster):
    await cluster.fill(A + B, C)
    await cluster.all.pin(path(A))
    (node,) = (n for n in (await cluster.all.tree(9, 99)).namespaces["tenant"] if n.content == A)
    assert node.pinned
    await cluster.all.pin(path(A), pinned=False)
    with pytest.raises(UnknownNode):
        await cluster.all.pin(path("zz"))


async def test_warming_goes_to_the_shard_of_the_document(cluster):
    plan = await cluster.all.warm(ask("warm", C))
    assert plan is not None
    await cluster.all.complete(report("warm"))
    assert await cluster.nodes() == [0, 0, 1]
    assert await cluster.all.warm(ask("warm again", C)) is NotWarmed.CACHED


async def test_unknown_plans_are_refused(cluster):
    with pytest.raises(UnknownPlan):
        await cluster.all.prefilled("nobody")
    with pytest.raises(UnknownPlan):
        await cluster.all.complete(report("nobody"))


async def test_a_cancelled_wait_is_completed_at_its_shard(cluster):
    crowded = Cluster(max_running=1)
    for name in ("one", "two"):
        await crowded.all.admit(ask(f"on {name}", A, question=900))
    task = asyncio.create_task(crowded.all.admit(ask("waits", A)))
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(UnknownPlan):
        await crowded.all.complete(report("waits", PlanOutcome.CANCELLED))
    for name in ("one", "two"):
        await crowded.all.complete(report(f"on {name}"))
    assert not crowded.all._of_plan


async def test_a_lost_copy_is_known_to_its_shard_whichever_plan_reports_it(cluster):
    plan = await cluster.all.admit(ask("of the first", A))
    await cluster.all.complete(report("of the first"))
    lost = (LostCopy(plan.nodes[0].key, GPU),)
    other = await cluster.all.admit(msgspec.structs.replace(ask("of the second", B), avoid=_all_but(plan.instance)))
    assert other.instance == plan.instance
    await cluster.all.prefilled("of the second", lost)
    assert await cluster.nodes() == [0, 1, 0]
    await cluster.all.complete(report("of the second"))
    await cluster.all.lose(plan.instance, (LostCopy(other.nodes[0].key, GPU),))
    assert await cluster.nodes() == [0, 0, 0]


async def test_the_same_documents_in_canonical_order_have_one_shard(cluster):
    for number, documents in enumerate((A + B, B + A)):
        request = msgspec.structs.replace(ask(f"query {number}", documents), order=DocumentOrder.CANONICAL)
        plan = await cluster.all.admit(request)
        await cluster.all.complete(report(f"query {number}"))
    assert sources(plan) == [GPU, GPU]


async def test_warming_without_evicting_stops_where_the_tiers_are_full(cluster):
    full = 0
    for number in range(20):
        plan = await cluster.all.warm(ask(f"warm {number}", A + "bcdefghijklmnopqrstu"[number]), evicting=False)
        if plan is NotWarmed.NO_ROOM:
            full += 1
        else:
            await cluster.all.complete(report(f"warm {number}"))
    assert full
    # What leaves a GPU goes to host memory, and nothing leaves that.
    assert not any(tier.evictions for tier in (await cluster.all.stats()).tiers if tier.tier is HOST)


def _all_but(instance: str) -> tuple[str, ...]:
    return tuple({"one", "two"} - {instance})


class TestSpeculation:
    async def guess(self, cluster, documents: str, plan_id: str):
        assert await cluster.all.on_candidates("query", tuple(documents), False) is START
        plan = await cluster.all.speculate("query", tuple(documents), ask(plan_id, documents))
        assert plan is not None
        return plan

    async def test_a_right_guess_is_confirmed_at_its_shard(self, cluster):
        await self.guess(cluster, A + B, "guess")
        assert await cluster.all.on_candidates("query", (A, B), True) is KEEP
        assert [(await shard.stats()).running for shard in cluster.shards] == [1, 0, 0]
        await cluster.all.prefilled("guess")
        await cluster.all.complete(report("guess"))

    async def test_better_documents_may_be_another_shards(self, cluster):
        await self.guess(cluster, A, "first")
        second = await self.guess(cluster, B, "second")
        assert second.namespace == "tenant#1"
        await cluster.all.complete(report("first", PlanOutcome.CANCELLED))
        assert await cluster.all.on_candidates("query", (B,), True) is KEEP
        await cluster.all.complete(report("second"))
        assert not cluster.shards[0]._speculations._running

    async def test_final_documents_of_another_shard_end_the_guess(self, cluster):
        await self.guess(cluster, A, "guess")
        assert await cluster.all.on_candidates("query", (B,), True) is DROP
        plan = await cluster.all.admit(ask("query", B))
        assert plan.namespace == "tenant#1"
        await cluster.all.complete(report("guess", PlanOutcome.CANCELLED))
        await cluster.all.complete(report("query"))
        assert not cluster.shards[0]._speculations._running

    async def test_an_admission_ends_the_guess_wherever_it_runs(self, cluster):
        await self.guess(cluster, A, "guess")
        await cluster.all.admit(ask("query", C))
        assert not cluster.shards[0]._speculations._running
        await cluster.all.complete(report("query"))
        await cluster.all.complete(report("guess", PlanOutcome.CANCELLED))

    async def test_a_query_that_ends_during_its_search_leaves_nothing(self, cluster):
        await self.guess(cluster, A, "guess")
        await cluster.all.complete(report("guess", PlanOutcome.CANCELLED))

    @pytest.mark.parametrize("ends", ["admit", "complete", "on_candidates"])
    async def test_a_shard_that_is_away_hinders_no_query_of_the_others(self, cluster, ends):
        await self.guess(cluster, A, "guess")
        shard, asked = cluster.shards[0], cluster.shards[0].on_candidates

        async def away(*_, **__):
            raise Unavailable("the controller is not available")

        shard.on_candidates = away
        if ends == "on_candidates":
            assert await cluster.all.on_candidates("query", (B,), True) is DROP
        plan = await cluster.all.admit(ask("query", B))
        assert plan.namespace == "tenant#1"
        await cluster.all.complete(report("query"))
        assert [(await other.stats()).running for other in cluster.shards[1:]] == [0, 0]
        shard.on_candidates = asked
        await cluster.all.complete(report("guess", PlanOutcome.CANCELLED))

    async def test_without_a_guess_there_is_nothing_to_drop(self, cluster):
        assert await cluster.all.on_candidates("query", (), False) is WAIT
        assert await cluster.all.on_candidates("query", (A,), True) is WAIT


class TestRestart:
    def held(self, namespace: str, documents: str, first: int) -> HeldNode:
        return HeldNode(namespace, tuple(documents), TOKENS, Pages(tuple(range(first, first + TOKENS)), 9 + first))

    async def test_each_shard_restores_its_own(self, cluster):
        nodes = tuple(self.held(f"tenant#{number}", "x", number * PAGES // COUNT) for number in range(COUNT))
        for shard in cluster.shards:
            result = shard.recovery.restore([ResidencyReport(HOST, nodes)])
            assert (result.restored, result.refused) == (1, 0)
            assert not shard._tree.tiers.pending_moves
        assert await cluster.nodes() == [1, 1, 1]

    async def test_what_another_number_of_shards_left_is_dropped_once(self, cluster):
        nodes = (self.held("tenant", "x", 0), self.held("tenant#7", "y", TOKENS))
        drops = []
        for shard in cluster.shards:
            shard.recovery.restore([ResidencyReport(HOST, nodes)])
            drops.append([move.pages.numbers[0] for move in shard._tree.tiers.pending_moves])
        assert drops == [[0, TOKENS], [], []]
        assert await cluster.nodes() == [0, 0, 0]

    async def test_pages_of_another_shards_part_are_not_taken_over(self, cluster):
        result = cluster.shards[0].recovery.restore([ResidencyReport(HOST, (self.held("tenant#0", "x", 250),))])
        assert (result.restored, result.refused) == (0, 1)
