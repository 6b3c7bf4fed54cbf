"""Two instances over one real disk and one real arena: what one writes, the other finds when it is there."""

import asyncio

import msgspec
import pytest
from controller_under_test import TOKENS, Clock, ask, checked_controllers
from engine_models import DISK, HOST, EngineModel, RealTiers
from instance_cases import all_ready

from cachectl.nodes.keys import path_keys
from protocol.kv import KvNode, LostCopy, Orders
from protocol.plans import CompletionReport, PlanOutcome, PrefillPlan
from protocol.tiers import Tier

PATIENCE_S = 10.0


class TwoInstances:
    """A controller of the instances one and two. Their engines carry out moves when the test lets them."""

    def __init__(self, build, folder, gpu: int, host: int = 0, disk: int = 0, **settings) -> None:
        self.tiers = [RealTiers(folder, TOKENS, host) for _ in range(2)]
        self.engines = {name: EngineModel(tiers) for name, tiers in zip(("one", "two"), self.tiers, strict=True)}
        self.controller = build(
            "one",
            "two",
            gpu=gpu * TOKENS,
            host=host * TOKENS,
            disk=disk * TOKENS,
            page_tokens=TOKENS,
            executor=self,
            max_running=9,
            policy="LRU",
            **settings,
        )
        self.orders = 0

    async def carry_out(self, instance: str, orders: Orders) -> tuple[LostCopy, ...]:
        self.orders += 1
        name, engine = f"orders {self.orders}", self.engines[instance]
        engine.receive(name, orders.moves)
        while (unwritten := engine.unwritten(name)) is None:
            await asyncio.sleep(0)
        return unwritten

    async def prefill(self, plan: PrefillPlan) -> None:
        raise NotImplementedError("these tests do not prefetch")

    async def begin(self, query_id: str, path: str, on: str) -> PrefillPlan:
        """Admit a query to one of the instances. Its engine has begun the plan's moves."""
        other = "two" if on == "one" else "one"
        request = msgspec.structs.replace(ask(query_id, path), avoid=(other,))
        plan = await self.controller.admit(request)
        assert plan.instance == on
        self.engines[on].receive(query_id, plan.moves)
        return plan

    async def prefilled(self, plan: PrefillPlan) -> list[LostCopy]:
        """Prefill a plan, and report the copies that were missing."""
        contents = [segment.key for segment in plan.prompt.documents]
        keys = path_keys("tenant", contents)
        nodes = [
            KvNode(key.hex(), "tenant", tuple(contents[: index + 1]), index * TOKENS, TOKENS)
            for index, key in enumerate(keys)
        ]
        self.engines[plan.instance].prefill(plan.query_id, plan.nodes, nodes)
        lost = self.engines[plan.instance].take_lost()
        await self.controller.prefilled(plan.query_id, lost)
        return lost

    async def end(self, plan: PrefillPlan) -> None:
        unwritten = self.engines[plan.instance].unwritten(plan.query_id)
        await self.controller.complete(
            CompletionReport(plan.query_id, PlanOutcome.COMPLETED, 0, 1, unwritten=unwritten)
        )

    async def serve(self, query_id: str, path: str, on: str) -> PrefillPlan:
        """Run a query to its end, with all that it writes."""
        plan = await self.begin(query_id, path, on)
        await self.prefilled(plan)
        self.engines[on].work_all()
        await self.end(plan)
        return plan

    async def settled(self) -> None:
        """Let the engines carry out everything that is ordered."""
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(100):
                for engine in self.engines.values():
                    engine.work_all()
                await asyncio.sleep(0)

    async def counted(self) -> set[str]:
        """The keys of the nodes that the tree counts on disk."""
        view = await self.controller.tree(9, 1000)
        nodes = [node for top in view.namespaces.values() for node in top]
        for node in nodes:
            nodes += node.children
        return {node.key for node in nodes if "disk" in node.places}

    def files(self) -> set[str]:
        return self.tiers[0].files()

    def close(self) -> None:
        for tiers in self.tiers:
            tiers.close()


@pytest.fixture
def start(tmp_path):
    started = []
    with checked_controllers(Clock()) as build:

        def start(**sizes) -> TwoInstances:
            started.append(TwoInstances(build, tmp_path, **sizes))
            return started[-1]

        yield start
    for instances in started:
        instances.close()


def sources(plan: PrefillPlan) -> list[Tier | None]:
    return [node.source for node in plan.nodes]


def key(path: str) -> str:
    return path_keys("tenant", path)[-1].hex()


async def test_every_file_has_an_owner_though_an_instance_asks_for_it_before_it_is_written(start):
    instances = start(gpu=1, disk=4)
    await instances.serve("fills", "a", on="one")
    swaps_out = await instances.begin("swaps out", "b", on="one")
    assert [(move.node, move.target) for move in swaps_out.moves] == [(key("a"), DISK)]
    await instances.prefilled(swaps_out)

    # One has not written the file yet. Two must neither look for it nor have it forgotten.
    early = await instances.begin("early", "a", on="two")
    assert sources(early) == [None]
    assert await instances.prefilled(early) == []
    await instances.end(early)
    assert instances.files() == set()

    instances.engines["one"].work_all()
    await instances.end(swaps_out)
    await instances.settled()
    assert instances.files() == await instances.counted() == {key("a")}

    # Two drops its own copy, and finds the file.
    await instances.serve("evicts", "c", on="two")
    assert sources(await instances.serve("late", "a", on="two")) == [DISK]
    await instances.settled()
    assert instances.files() == await instances.counted()


async def test_an_instance_that_was_told_of_no_end_is_asked_for_what_it_wrote(start):
    instances = start(gpu=1, disk=4)
    await instances.serve("fills", "a", on="one")
    swaps_out = await instances.begin("swaps out", "b", on="one")
    await instances.prefilled(swaps_out)
    await instances.end(swaps_out)
    assert sources(await instances.begin("early", "a", on="two")) == [None]
    await instances.settled()
    assert instances.orders == 1
    await instances.serve("evicts", "c", on="two")
    assert sources(await instances.begin("late", "a", on="two")) == [DISK]


async def test_a_copy_that_could_not_be_written_is_forgotten_and_its_room_is_free(start, tmp_path):
    instances = start(gpu=1, disk=4)
    await instances.serve("fills", "a", on="one")
    swaps_out = await instances.begin("swaps out", "b", on="one")
    await instances.prefilled(swaps_out)
    folder = tmp_path / "weights"
    folder.rename(tmp_path / "away")
    folder.touch()
    instances.engines["one"].work_all()
    folder.unlink()
    (tmp_path / "away").rename(folder)
    await instances.end(swaps_out)
    await instances.settled()
    assert instances.files() == await instances.counted() == set()
    assert sources(await instances.serve("again", "a", on="two")) == [None]


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
async def test_host_memory_is_not_taken_from_the_instance_that_is_still_writing_it(start, order):
    instances = start(gpu=1, host=1, disk=4)
    for query, path in (("a", "a"), ("c", "c")):
        await instances.serve(query, path, on="one" if path == "a" else "two")
    first = await instances.begin("first", "b", on="one")
    assert [(move.node, move.target) for move in first.moves] == [(key("a"), HOST)]
    # One has not written the only page of host memory yet, so two does without it.
    second = await instances.begin("second", "d", on="two")
    assert [(move.node, move.target) for move in second.moves] == [(key("c"), DISK)]
    for plan in (first, second):
        await instances.prefilled(plan)
    await all_ready()
    for name in order:
        instances.engines[name].work_all()
    for plan in (first, second):
        await instances.end(plan)
    await instances.settled()
    assert instances.files() == await instances.counted() == {key("c")}
    assert sources(await instances.begin("reads", "a", on="two")) == [HOST]


async def test_the_file_of_a_lost_instance_is_found_or_dropped_by_the_other(start):
    instances = start(gpu=1, disk=4)
    for path in "ab":
        await instances.serve(path, path, on="one")
    swaps_out = await instances.begin("swaps out", "c", on="one")
    await instances.prefilled(swaps_out)
    await instances.settled()
    controller = instances.controller
    controller.instances.retire("one")
    instances.engines["one"].kill()
    await instances.end(swaps_out)
    controller.expire_leases()
    assert [load.instance for load in (await controller.stats()).instances] == ["two"]
    await instances.settled()
    assert instances.files() == await instances.counted() == {key("a"), key("b")}
    assert sources(await controller.admit(ask("reads", "b"))) == [DISK]


async def test_a_lost_instance_leaves_no_copy_that_it_has_not_written(start):
    instances = start(gpu=1, disk=4)
    await instances.serve("fills", "a", on="one")
    swaps_out = await instances.begin("swaps out", "b", on="one")
    await instances.prefilled(swaps_out)
    controller = instances.controller
    controller.instances.retire("one")
    instances.engines["one"].kill()
    await instances.end(swaps_out)
    controller.expire_leases()
    await instances.settled()
    assert instances.files() == await instances.counted() == set()
