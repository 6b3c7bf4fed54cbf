"""Random interleavings: bounds hold, and nothing is left locked or reserved."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from itertools import product

from controller_integrity import check_integrity
from controller_turns import Turns
from controller_under_test import LATER, LEASE_S, ask, at, report
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from cachectl.policies import policy_names
from cachectl.settings import Swap
from protocol.cache import DocumentDeletion
from protocol.errors import EngineDied, EngineNotReady, InvalidRequest, Overloaded, UnknownPlan
from protocol.generation import StepBudget
from protocol.kv import LostCopy, Orders
from protocol.plans import PrefillPlan
from protocol.tiers import Tier

QUERIES = [*"0123", *(f"warm-{number}" for number in "0123")]
ACTIONS = (
    ["admit"] * 6
    + ["complete"] * 8
    + ["cancel"] * 4
    + ["warm", "delete", "clear", "hours", "expire", "prefilled", "prefilled", "restart"]
)
DOCUMENTS = ["", "a", "ab", "abc", "b", "ba", "c"]
# How often the event loop runs after a step. Without any run, several events meet in one moment.
TICKS = [0, 0, 0, 0, 1, 5]
# One draw for a whole step: drawing its parts one by one takes as long as running it.
steps = st.sampled_from(list(product(ACTIONS, "0123", DOCUMENTS, TICKS)))


class ClumsyExecutor:
    """An executor that takes a while, fails every third time, and loses the first of the copies that it makes."""

    def __init__(self) -> None:
        self.calls = 0
        self.busy: set[str] = set()

    async def carry_out(self, instance: str, orders: Orders) -> list[LostCopy]:
        assert instance not in self.busy, "an instance has two deliveries at once"
        self.busy.add(instance)
        self.calls += 1
        gone = self.calls % 3 == 0
        for _ in range(self.calls % 4):
            await asyncio.sleep(0)
        self.busy.discard(instance)
        if gone:
            raise EngineNotReady("the engine is loading")
        return [LostCopy(move.node, move.target) for move in orders.moves if move.target is not None][:1]


class Crowd(Turns):
    """Queries that come, end, report and are lost in any order. Checks what must hold meanwhile and at the end."""

    def __init__(self, executes: bool = False, **bounds: int | str) -> None:
        super().__init__(executor=ClumsyExecutor() if executes else None, **bounds)
        self.deletions: list[asyncio.Task[int]] = []
        self.tasks: dict[str, asyncio.Task[PrefillPlan]] = {}
        self.gone: list[asyncio.Task[PrefillPlan]] = []

    async def step(self, action: str, query_id: str, documents: str, ticks: int) -> None:
        task = self.tasks.get(query_id)
        match action:
            case "admit" if task is None:
                # Some searches began before all deletions so far, others after them.
                asked = ask(query_id, documents, tokens=3, found_at=at(0) if ticks else LATER)
                self.tasks[query_id] = asyncio.create_task(self.controller.admit(asked))
            case "complete":
                await self.reports(query_id, computed=ticks, loses=bool(documents))
            case "cancel" if task is not None and not task.done():
                task.cancel()
                self.gone.append(self.tasks.pop(query_id))
            case "warm":
                with suppress(InvalidRequest):
                    await self.controller.warm(ask(f"warm-{query_id}", documents, tokens=3))
            case "delete":
                self.deletes(self.controller.delete_document(DocumentDeletion(tuple(documents), None, *at(1))))
            case "clear":
                self.deletes(self.controller.clear())
            case "prefilled":
                with suppress(UnknownPlan):
                    await self.controller.prefilled(query_id)
            case "restart":
                self.controller.instances.restart("instance-0", "reboot", [])
            case "hours":
                self.clock.now += LEASE_S / 2
            case "expire":
                self.controller.expire_leases()
        check_integrity(self.controller)
        if ticks:
            for _ in range(ticks):
                await asyncio.sleep(0)
            check_integrity(self.controller)
        for refused in [name for name, task in self.tasks.items() if failure(task)]:
            self.gone.append(self.tasks.pop(refused))

    def deletes(self, deletion: Coroutine[None, None, int]) -> None:
        self.deletions.append(asyncio.create_task(deletion))

    async def reports(self, query_id: str, computed: int = 1, loses: bool = False) -> None:
        """End a query that waits or runs. A query that has not begun yet has nothing to report."""
        task = self.tasks.get(query_id)
        nodes = task.result().nodes[:1] if loses and task is not None and task.done() and not failure(task) else ()
        lost = tuple(LostCopy(node.key, Tier.GPU) for node in nodes)
        with suppress(UnknownPlan):
            await self.controller.complete(report(query_id, computed=computed, lost=lost))
            if task is not None:
                self.gone.append(self.tasks.pop(query_id))

    async def drains(self, by_reports: bool) -> None:
        """End all queries that are left, by reports or by letting their leases run out."""
        async with asyncio.timeout(5):
            while await self.load() != (0, 0) or not all(task.done() for task in [*self.tasks.values(), *self.gone]):
                if by_reports:
                    for query_id in QUERIES:
                        await self.reports(query_id)
                else:
                    self.clock.now += LEASE_S
                    self.controller.expire_leases()
                await asyncio.sleep(0)
            await asyncio.gather(*self.deletions, return_exceptions=True)
        check_integrity(self.controller)
        for error in filter(None, map(failure, [*self.tasks.values(), *self.gone])):
            assert isinstance(error, Overloaded | InvalidRequest | EngineDied | asyncio.CancelledError)
        for error in filter(None, map(failure, self.deletions)):
            assert isinstance(error, EngineNotReady)

    async def left_nothing(self) -> None:
        """Assert that nothing is locked or reserved."""
        view = await self.controller.tree(9, 1000)
        nodes = [node for children in view.namespaces.values() for node in children]
        for node in nodes:
            nodes += node.children
        assert not any(node.locked for node in nodes)
        assert all(node.places for node in nodes)
        assert sum(tier.used_tokens for tier in view.tiers) == sum(node.tokens * len(node.places) for node in nodes)


def failure(task: asyncio.Task[PrefillPlan]) -> BaseException | None:
    """The error with which a task ended, if any."""
    if not task.done():
        return None
    return asyncio.CancelledError() if task.cancelled() else task.exception()


@settings(max_examples=examples(200), deadline=None)
@given(
    bounds=st.fixed_dictionaries(
        {
            "instances": st.integers(1, 2),
            "policy": st.sampled_from(policy_names()),
            # Few slots, so that queries wait: most of what can go wrong does so as a turn comes.
            "max_running": st.sampled_from([1, 1, 2, 3]),
            "first_token_s": st.sampled_from([LEASE_S / 4, LEASE_S]),
            "max_queued": st.integers(0, 3),
            "reorder_window": st.integers(0, 2),
            "gpu": st.integers(0, 24),
            "host": st.integers(0, 24),
            "swap": st.sampled_from(Swap),
            "executes": st.booleans(),
            "engine_step": st.sampled_from([None, StepBudget(6, 4)]),
            # At 0 seconds per token, steps are handed over at once.
            "prefill_s": st.sampled_from([0.0, 1.0]),
        }
    ),
    # Without a minimum, Hypothesis makes mostly short lists.
    taken=st.lists(steps, min_size=30, max_size=90),
    by_reports=st.booleans(),
)
def test_bounds_hold_and_nothing_leaks_in_any_interleaving(bounds, taken, by_reports):
    async def run() -> None:
        crowd = Crowd(**bounds)
        for step in taken:
            await crowd.step(*step)
        await crowd.drains(by_reports)
        await crowd.left_nothing()

    asyncio.run(run())
