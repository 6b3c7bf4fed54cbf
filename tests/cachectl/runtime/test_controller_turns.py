"""Every turn reaches somebody and every cache is given back, whatever meets in one moment."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress

import pytest
from controller_under_test import LATER, LEASE_S, Clock, Costs, ask, report, waiting
from hypothesis import given, settings
from hypothesis import strategies as st

from cachectl.policies import policy_names
from cachectl.runtime.controller import Controller
from cachectl.settings import ControllerSettings, Swap
from cachectl.tree.tier_manager import Capacities
from protocol.cache import DocumentDeletion
from protocol.errors import EngineDied, EngineNotReady, InvalidRequest, Overloaded, UnknownPlan
from protocol.generation import StepBudget
from protocol.kv import LostCopy, Orders
from protocol.plans import PrefillPlan
from protocol.tiers import Tier


class Turns:
    """A controller with the steps of these tests: a report ``ends`` a query at once, without a chance for others."""

    def __init__(
        self,
        instances: int = 1,
        gpu: int = 1000,
        host: int = 0,
        executor=None,
        engine_step: StepBudget | None = None,
        prefill_s: float = 1.0,
        **bounds: int | str,
    ) -> None:
        self.clock = Clock()
        defaults = {"policy": "LRU", "max_running": 1, "max_queued": 10, "lease_s": LEASE_S}
        self.controller = Controller(
            ControllerSettings(**defaults | bounds),
            [f"instance-{index}" for index in range(instances)],
            self.clock,
            Costs(prefill_s=prefill_s),
            Capacities(gpu, host),
            executor=executor,
            step=engine_step,
        )

    async def runs(self, query_id: str, documents: str = "") -> None:
        """Admit a query that finds a free cache."""
        async with asyncio.timeout(0):
            await self.controller.admit(ask(query_id, documents, tokens=1))

    async def waits(self, query_id: str, documents: str = "", tokens: int = 1) -> asyncio.Task[PrefillPlan]:
        """A task that waits for its turn once this returns."""
        return await waiting(self.controller, ask(query_id, documents, tokens=tokens))

    async def ends(self, query_id: str) -> None:
        await self.controller.complete(report(query_id))
        self.controller.check_integrity()

    async def load(self) -> tuple[int, int]:
        """Queries that run and queries that wait."""
        stats = await self.controller.stats()
        return stats.running, stats.queued


async def cancelled(task: asyncio.Task[PrefillPlan]) -> None:
    """Assert that a task ends cancelled."""
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(5):
            await task
    assert task.cancelled()


@pytest.fixture
def turns():
    turns = Turns()
    yield turns
    turns.controller.check_integrity()


# The order


@pytest.mark.parametrize(("window", "order"), [(0, "bca"), (1, "cba"), (9, "cab")])
async def test_serves_what_is_cached_most_first_within_the_window(window, order):
    turns = Turns(reorder_window=window)
    await turns.runs("fill", "xxxxxxxxx")
    await turns.ends("fill")
    await turns.runs("first")
    tasks = {
        name: await turns.waits(name, documents) for name, documents in [("b", ""), ("c", "x" * 9), ("a", "x" * 5)]
    }
    served = ""
    running = "first"
    while tasks:
        await turns.ends(running)
        await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        [running] = [name for name, task in tasks.items() if task.done()]
        del tasks[running]
        served += running
    assert served == order
    assert (await turns.controller.stats()).largest_overtake <= window


async def test_who_waits_for_what_the_running_query_computes_overtakes(turns):
    await turns.runs("fill", "x")
    await turns.ends("fill")
    await turns.runs("first", "yz")
    a, b = await turns.waits("a", "x"), await turns.waits("b", "yz")
    await turns.ends("first")
    await b
    assert not a.done()
    await turns.ends("b")
    await a


async def test_who_waits_for_what_is_deleted_meanwhile_falls_back(turns):
    await turns.runs("fill", "xy")
    await turns.ends("fill")
    await turns.runs("first")
    a, b = await turns.waits("a"), await turns.waits("b", "xy")
    await turns.controller.delete_document(DocumentDeletion(("x",)))
    await turns.ends("first")
    await a
    assert not b.done()
    await turns.ends("a")
    await b


# Places


async def test_a_query_holds_one_place_however_often_it_asks(turns):
    await turns.runs("a")
    with pytest.raises(InvalidRequest):
        await turns.controller.admit(ask("a"))
    assert await turns.load() == (1, 0)


async def test_refuses_at_once_when_full():
    turns = Turns(max_queued=1)
    await turns.runs("running")
    waiting = await turns.waits("waiting")
    with pytest.raises(Overloaded):
        await turns.runs("refused")
    await turns.ends("running")
    await waiting
    assert await turns.load() == (1, 0)


async def test_a_second_wait_of_one_query_is_refused_and_the_first_goes_on(turns):
    await turns.runs("running")
    first = await turns.waits("twice")
    with pytest.raises(InvalidRequest):
        await turns.controller.admit(ask("twice"))
    await turns.ends("running")
    await first


async def test_ending_a_query_twice_frees_one_place():
    turns = Turns(max_queued=2)
    await turns.runs("a")
    b, c = await turns.waits("b"), await turns.waits("c")
    await turns.ends("a")
    with pytest.raises(UnknownPlan):
        await turns.ends("a")
    await b
    assert await turns.load() == (1, 1)
    await turns.ends("b")
    await c


async def test_one_end_gives_all_free_places_away(turns):
    """A cache that was given back by a cancelled turn is as good as any other."""
    turns = Turns(max_running=2)
    await turns.runs("a")
    await turns.runs("b")
    c, d, e = [await turns.waits(name) for name in "cde"]
    await turns.ends("a")
    await turns.ends("b")
    c.cancel()
    await cancelled(c)
    await asyncio.gather(d, e)
    assert await turns.load() == (2, 0)


async def test_the_first_token_of_a_long_prefill_lets_the_next_begin():
    turns = Turns(max_running=9, engine_step=StepBudget(6, 4))
    await turns.runs("long", "abcde")
    waits = await turns.waits("waits", "fghij")
    await turns.controller.prefilled("long")
    await waits
    assert await turns.load() == (2, 0)
    await turns.ends("long")


PREFILL_S = 0.06
"""What five documents of a token each and a question of one take at a hundredth of a second a token."""


async def test_each_long_prefill_begins_when_the_one_before_it_is_about_to_end():
    turns = Turns(max_running=9, engine_step=StepBudget(6, 4), prefill_s=0.01)
    clock = asyncio.get_running_loop().time
    began = clock()
    await turns.runs("0", "abcde")
    documents = ["fghij", "klmno", "pqrst", "uvwxy", "ABCDE"]
    waiting = [await turns.waits(str(number), names) for number, names in enumerate(documents, 1)]
    for number, task in enumerate(waiting):
        async with asyncio.timeout(5):
            await task
        # Two steps of four tokens are more than half of it, which is when at the earliest.
        assert clock() - began >= PREFILL_S / 2 - 0.002
        turns.controller.check_integrity()
        # One at a time: its own part is handed over after the first token of the one before it.
        await asyncio.sleep(PREFILL_S)
        assert await turns.load() == (number + 2, len(waiting) - number - 1)
        began = clock()
        await turns.controller.prefilled(str(number))
    for number in range(len(waiting) + 1):
        await turns.ends(str(number))


async def test_who_comes_when_a_first_token_is_due_already_begins_at_once():
    turns = Turns(max_running=9, engine_step=StepBudget(6, 4), prefill_s=0.01)
    await turns.runs("long", "abcde")
    await asyncio.sleep(PREFILL_S / 2)
    asked = asyncio.get_running_loop().time()
    await turns.controller.admit(ask("late", "fghij", tokens=1))
    assert asyncio.get_running_loop().time() - asked < PREFILL_S / 2
    for query_id in ("long", "late"):
        await turns.ends(query_id)


async def test_nobody_is_let_in_ahead_of_a_first_token_where_no_place_is_free():
    turns = Turns(max_running=1, engine_step=StepBudget(6, 4), prefill_s=0.0)
    await turns.runs("long", "abcde")
    waits = await turns.waits("waits", "fghij")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await asyncio.shield(waits)
    await turns.ends("long")
    await waits


async def test_a_holder_that_is_lost_before_its_first_token_keeps_others_waiting_for_a_while_only():
    turns = Turns(max_running=9, engine_step=StepBudget(6, 4), first_token_s=LEASE_S / 3)
    await turns.runs("lost", "abcde")
    waits, next_one = await turns.waits("waits", "fghij"), await turns.waits("next", "klmno")
    turns.clock.now += LEASE_S / 3
    turns.controller.expire_leases()
    await waits
    assert await turns.load() == (2, 1)
    # The lease is still there, and its end lets nobody in a second time.
    await turns.ends("lost")
    assert not next_one.done()
    await turns.ends("waits")
    await next_one


async def test_a_long_prefill_that_is_given_up_in_front_lets_those_behind_begin():
    turns = Turns(max_running=9, engine_step=StepBudget(6, 4))
    await turns.runs("long", "abcde")
    first, second = await turns.waits("first", "fghij"), await turns.waits("second", "k")
    first.cancel()
    await cancelled(first)
    await second
    assert await turns.load() == (2, 0)


# Waits that are cancelled


async def test_a_wait_that_is_cancelled_gives_its_place_up(turns):
    await turns.runs("running")
    gone, patient = await turns.waits("gone"), await turns.waits("patient")
    gone.cancel()
    await cancelled(gone)
    assert await turns.load() == (1, 1)
    await turns.ends("running")
    await patient
    with pytest.raises(UnknownPlan):
        await turns.ends("gone")


async def test_a_turn_that_comes_as_its_query_is_cancelled_goes_to_the_next(turns):
    await turns.runs("running")
    gone, patient = await turns.waits("gone"), await turns.waits("patient")
    await turns.ends("running")  # hands the cache to "gone" ...
    gone.cancel()  # ... which leaves in the same tick
    await patient
    await cancelled(gone)
    assert await turns.load() == (1, 0)


async def test_a_query_that_is_cancelled_as_its_turn_comes_passes_it_on(turns):
    await turns.runs("running")
    gone, patient = await turns.waits("gone"), await turns.waits("patient")
    gone.cancel()  # it has not heard of this yet ...
    await turns.ends("running")  # ... when it is given the cache
    await patient
    await cancelled(gone)
    assert await turns.load() == (1, 0)


async def test_a_query_that_is_cancelled_one_tick_after_its_turn_passes_it_on(turns):
    await turns.runs("running")
    gone, patient = await turns.waits("gone"), await turns.waits("patient")
    await turns.ends("running")
    await asyncio.sleep(0)  # the turn is on its way
    assert not gone.done()
    gone.cancel()
    await patient
    await cancelled(gone)
    assert await turns.load() == (1, 0)


async def test_what_a_cancelled_turn_had_reserved_is_free_again(turns):
    await turns.runs("running")
    gone = await turns.waits("gone", "ab")
    await turns.ends("running")
    assert [tier.used_tokens for tier in (await turns.controller.stats()).tiers] == [2]
    gone.cancel()
    await cancelled(gone)
    assert [tier.used_tokens for tier in (await turns.controller.stats()).tiers] == [0]
    assert await turns.load() == (0, 0)


async def test_a_query_whose_cancelled_wait_has_not_heard_of_it_yet_is_still_waiting(turns):
    await turns.runs("running")
    gone = await turns.waits("again")
    gone.cancel()
    with pytest.raises(InvalidRequest):
        await turns.controller.admit(ask("again"))
    await cancelled(gone)
    assert await turns.load() == (1, 0)
    again = await turns.waits("again")
    await turns.ends("running")
    await again


async def test_a_wait_that_is_cancelled_twice_ends_once(turns):
    await turns.runs("running")
    gone, patient = await turns.waits("gone"), await turns.waits("patient")
    gone.cancel()
    gone.cancel()
    await cancelled(gone)
    await turns.ends("running")
    await patient


# Waits that are ended by a report


async def test_a_report_on_a_wait_ends_it_cancelled(turns):
    await turns.runs("running")
    gone = await turns.waits("gone")
    await turns.ends("gone")
    await cancelled(gone)
    assert await turns.load() == (1, 0)
    with pytest.raises(UnknownPlan):
        await turns.ends("gone")


async def test_a_report_that_comes_as_the_turn_does_gives_no_plan(turns):
    await turns.runs("running")
    gone, patient = await turns.waits("gone"), await turns.waits("patient")
    await turns.ends("running")  # hands the cache to "gone" ...
    await turns.ends("gone")  # ... which has not heard of it
    await patient
    await cancelled(gone)
    assert await turns.load() == (1, 0)


async def test_a_lease_that_runs_out_before_its_holder_hears_of_it_gives_no_plan(turns):
    await turns.runs("running")
    gone, patient = await turns.waits("gone"), await turns.waits("patient")
    await turns.ends("running")
    turns.clock.now = LEASE_S
    turns.controller.expire_leases()
    await patient
    await cancelled(gone)
    assert await turns.load() == (1, 0)


async def test_a_wait_that_was_ended_takes_nothing_from_the_same_query_come_again(turns):
    await turns.runs("running")
    first = await turns.waits("again")
    await turns.ends("again")
    await turns.ends("running")
    await turns.runs("again")  # takes the free cache before the first wait has heard of its end
    await cancelled(first)
    assert await turns.load() == (1, 0)
    await turns.ends("again")


async def test_a_turn_that_was_ended_takes_nothing_from_the_same_query_come_again(turns):
    await turns.runs("running")
    first = await turns.waits("again")
    await turns.ends("running")  # hands the cache to the first wait ...
    await turns.ends("again")  # ... which has not heard of it ...
    await turns.runs("again")  # ... when the query comes again
    await cancelled(first)
    assert await turns.load() == (1, 0)
    await turns.ends("again")


@pytest.mark.parametrize("cancelled_first", [True, False])
async def test_a_cancelled_wait_whose_turn_came_and_was_ended_has_nothing_to_give_back(turns, cancelled_first):
    await turns.runs("running")
    gone, patient = await turns.waits("gone"), await turns.waits("patient")
    if cancelled_first:
        gone.cancel()
    await turns.ends("running")  # hands the cache to "gone" ...
    await turns.ends("gone")  # ... and takes it back before "gone" has heard of either
    if not cancelled_first:
        gone.cancel()
    await patient
    await cancelled(gone)
    assert await turns.load() == (1, 0)


async def test_a_cancelled_wait_whose_turn_came_and_ran_out_has_nothing_to_give_back(turns):
    await turns.runs("running")
    gone, patient = await turns.waits("gone"), await turns.waits("patient")
    await turns.ends("running")
    turns.clock.now = LEASE_S
    turns.controller.expire_leases()
    gone.cancel()
    await patient
    await cancelled(gone)
    assert await turns.load() == (1, 0)


async def test_a_cancelled_wait_whose_turn_was_ended_leaves_the_same_query_come_again_its_plan(turns):
    await turns.runs("running")
    first = await turns.waits("again")
    await turns.ends("running")
    await turns.ends("again")
    first.cancel()
    await turns.runs("again")
    await cancelled(first)
    assert await turns.load() == (1, 0)
    await turns.ends("again")


# Anything in any order

QUERIES = [*"0123", *(f"warm-{number}" for number in "0123")]
steps = st.tuples(
    st.sampled_from(
        ["admit"] * 6
        + ["complete"] * 8
        + ["cancel"] * 4
        + ["warm", "delete", "clear", "hours", "expire", "prefilled", "prefilled", "restart"]
    ),
    st.sampled_from("0123"),
    st.sampled_from(["", "a", "ab", "abc", "b", "ba", "c"]),
    # None at all lets events meet in one moment.
    st.sampled_from([0, 0, 0, 0, 1, 5]),
)


class Clumsy:
    """Executor that take a while, are not there every third time, and lose the first of what they copy."""

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
    """Queries that come, go, report and are lost in any order, and all that must be true meanwhile and at the end."""

    def __init__(self, handy: bool = False, **bounds: int | str) -> None:
        super().__init__(executor=Clumsy() if handy else None, **bounds)
        self.deletions: list[asyncio.Task[int]] = []
        self.tasks: dict[str, asyncio.Task[PrefillPlan]] = {}
        self.gone: list[asyncio.Task[PrefillPlan]] = []

    async def step(self, action: str, query_id: str, documents: str, ticks: int) -> None:
        task = self.tasks.get(query_id)
        match action:
            case "admit" if task is None:
                # Some have searched before whatever was deleted so far, others after it.
                asked = ask(query_id, documents, tokens=3, searched_at=0.0 if ticks else LATER)
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
                self.deletes(self.controller.delete_document(DocumentDeletion(tuple(documents))))
            case "clear":
                self.deletes(self.controller.clear())
            case "prefilled":
                with suppress(UnknownPlan):
                    await self.controller.prefilled(query_id)
            case "restart":
                await self.controller.restart_instance("instance-0", [])
            case "hours":
                self.clock.now += LEASE_S / 2
            case "expire":
                self.controller.expire_leases()
        self.controller.check_integrity()
        for _ in range(ticks):
            await asyncio.sleep(0)
        self.controller.check_integrity()
        for refused in [name for name, task in self.tasks.items() if failure(task)]:
            self.gone.append(self.tasks.pop(refused))

    def deletes(self, deletion: Coroutine[None, None, int]) -> None:
        self.deletions.append(asyncio.create_task(deletion))

    async def reports(self, query_id: str, computed: int = 1, loses: bool = False) -> None:
        """End a query, wherever it is; one that has not begun yet has nothing to report."""
        task = self.tasks.get(query_id)
        nodes = task.result().nodes[:1] if loses and task is not None and task.done() and not failure(task) else ()
        lost = tuple(LostCopy(node.key, Tier.GPU) for node in nodes)
        with suppress(UnknownPlan):
            await self.controller.complete(report(query_id, computed=computed, lost=lost))
            if task is not None:
                self.gone.append(self.tasks.pop(query_id))

    async def drains(self, by_reports: bool) -> None:
        """End all that is left, by reports or because nobody sends one."""
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
        self.controller.check_integrity()
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
    """What a task that is done ended with, if not with a plan."""
    if not task.done():
        return None
    return asyncio.CancelledError() if task.cancelled() else task.exception()


@settings(max_examples=300, deadline=None)
@given(
    bounds=st.fixed_dictionaries(
        {
            "instances": st.integers(1, 2),
            "policy": st.sampled_from(policy_names()),
            "max_running": st.integers(1, 4),
            "first_token_s": st.sampled_from([LEASE_S / 4, LEASE_S]),
            "max_queued": st.integers(0, 3),
            "reorder_window": st.integers(0, 2),
            "gpu": st.integers(0, 24),
            "host": st.integers(0, 24),
            "swap": st.sampled_from(Swap),
            "handy": st.booleans(),
            "engine_step": st.sampled_from([None, StepBudget(6, 4)]),
            # At 0 seconds a token steps are handed over at once.
            "prefill_s": st.sampled_from([0.0, 1.0]),
        }
    ),
    # Hypothesis makes short lists where it may.
    taken=st.lists(steps, min_size=30, max_size=90),
    by_reports=st.booleans(),
)
def test_whatever_meets_in_one_moment_bounds_hold_and_nothing_leaks(bounds, taken, by_reports):
    async def run() -> None:
        crowd = Crowd(**bounds)
        for step in taken:
            await crowd.step(*step)
        await crowd.drains(by_reports)
        await crowd.left_nothing()

    asyncio.run(run())
