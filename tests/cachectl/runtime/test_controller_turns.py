"""Turns: each one reaches a query, and every slot is freed, even when events meet in one moment."""

import asyncio

import pytest
from controller_integrity import check_integrity
from controller_turns import Turns, cancelled
from controller_under_test import LEASE_S, ask

from protocol.cache import DocumentDeletion
from protocol.errors import InvalidRequest, Overloaded, UnknownPlan
from protocol.generation import StepBudget


@pytest.fixture
def turns():
    turns = Turns()
    yield turns
    check_integrity(turns.controller)


# The order


@pytest.mark.parametrize(("window", "order"), [(0, "bca"), (1, "cba"), (9, "cab")])
async def test_the_most_cached_query_runs_first_within_the_window(window, order):
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


async def test_a_query_that_shares_documents_with_the_running_one_overtakes(turns):
    await turns.runs("fill", "x")
    await turns.ends("fill")
    await turns.runs("first", "yz")
    a, b = await turns.waits("a", "x"), await turns.waits("b", "yz")
    await turns.ends("first")
    await b
    assert not a.done()
    await turns.ends("b")
    await a


async def test_a_query_whose_documents_are_deleted_falls_back(turns):
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


# Slots


async def test_a_query_that_asks_twice_holds_one_slot(turns):
    await turns.runs("a")
    with pytest.raises(InvalidRequest):
        await turns.controller.admit(ask("a"))
    assert await turns.load() == (1, 0)


async def test_a_full_queue_refuses_at_once():
    turns = Turns(max_queued=1)
    await turns.runs("running")
    waiting = await turns.waits("waiting")
    with pytest.raises(Overloaded):
        await turns.runs("refused")
    await turns.ends("running")
    await waiting
    assert await turns.load() == (1, 0)


async def test_a_second_wait_of_a_query_is_refused_and_the_first_continues(turns):
    await turns.runs("running")
    first = await turns.waits("twice")
    with pytest.raises(InvalidRequest):
        await turns.controller.admit(ask("twice"))
    await turns.ends("running")
    await first


async def test_completing_a_query_twice_frees_one_slot():
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


async def test_one_completion_hands_out_all_free_slots(turns):
    """Including a slot that a cancelled turn has freed."""
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


async def test_the_first_token_of_a_long_prefill_starts_the_next_query():
    turns = Turns(max_running=9, engine_step=StepBudget(6, 4))
    await turns.runs("long", "abcde")
    waits = await turns.waits("waits", "fghij")
    await turns.controller.prefilled("long")
    await waits
    assert await turns.load() == (2, 0)
    await turns.ends("long")


PREFILL_S = 0.06
"""The prefill of five documents and a question, of one token each, at 10 ms per token."""


async def test_each_long_prefill_starts_when_the_previous_one_is_about_to_end():
    turns = Turns(max_running=9, engine_step=StepBudget(6, 4), prefill_s=0.01)
    clock = asyncio.get_running_loop().time
    began = clock()
    await turns.runs("0", "abcde")
    documents = ["fghij", "klmno", "pqrst", "uvwxy", "ABCDE"]
    waiting = [await turns.waits(str(number), names) for number, names in enumerate(documents, 1)]
    for number, task in enumerate(waiting):
        async with asyncio.timeout(5):
            await task
        # Two steps of four tokens take more than half of the prefill, so the handover comes at half of it.
        assert clock() - began >= PREFILL_S / 2 - 0.002
        check_integrity(turns.controller)
        # One handover at a time: the next one needs the first token of the previous prefill.
        await asyncio.sleep(PREFILL_S)
        assert await turns.load() == (number + 2, len(waiting) - number - 1)
        began = clock()
        await turns.controller.prefilled(str(number))
    for number in range(len(waiting) + 1):
        await turns.ends(str(number))


async def test_a_query_that_arrives_when_a_first_token_is_due_starts_at_once():
    turns = Turns(max_running=9, engine_step=StepBudget(6, 4), prefill_s=0.01)
    await turns.runs("long", "abcde")
    await asyncio.sleep(PREFILL_S / 2)
    asked = asyncio.get_running_loop().time()
    await turns.controller.admit(ask("late", "fghij", tokens=1))
    assert asyncio.get_running_loop().time() - asked < PREFILL_S / 2
    for query_id in ("long", "late"):
        await turns.ends(query_id)


async def test_no_query_starts_before_a_first_token_without_a_free_slot():
    turns = Turns(max_running=1, engine_step=StepBudget(6, 4), prefill_s=0.0)
    await turns.runs("long", "abcde")
    waits = await turns.waits("waits", "fghij")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await asyncio.shield(waits)
    await turns.ends("long")
    await waits


async def test_a_lost_holder_without_a_first_token_delays_others_only_until_it_is_overdue():
    turns = Turns(max_running=9, engine_step=StepBudget(6, 4), first_token_s=LEASE_S / 3)
    await turns.runs("lost", "abcde")
    waits, next_one = await turns.waits("waits", "fghij"), await turns.waits("next", "klmno")
    turns.clock.now += LEASE_S / 3
    turns.controller.expire_leases()
    await waits
    assert await turns.load() == (2, 1)
    # The lease still exists. Its end starts no second query.
    await turns.ends("lost")
    assert not next_one.done()
    await turns.ends("waits")
    await next_one


async def test_cancelling_the_first_waiting_query_starts_one_that_fits():
    turns = Turns(max_running=9, engine_step=StepBudget(6, 4))
    await turns.runs("long", "abcde")
    first, second = await turns.waits("first", "fghij"), await turns.waits("second", "k")
    first.cancel()
    await cancelled(first)
    await second
    assert await turns.load() == (2, 0)


# Cancelled waits


async def test_a_cancelled_wait_leaves_the_queue(turns):
    await turns.runs("running")
    gone, patient = await turns.waits("gone"), await turns.waits("patient")
    gone.cancel()
    await cancelled(gone)
    assert await turns.load() == (1, 1)
    await turns.ends("running")
    await patient
    with pytest.raises(UnknownPlan):
        await turns.ends("gone")


async def test_a_query_cancelled_right_after_its_turn_passes_it_on(turns):
    await turns.runs("running")
    gone, patient = await turns.waits("gone"), await turns.waits("patient")
    await turns.ends("running")  # makes it the turn of "gone" ...
    gone.cancel()  # ... which is cancelled in the same tick
    await patient
    await cancelled(gone)
    assert await turns.load() == (1, 0)


async def test_a_query_cancelled_right_before_its_turn_passes_it_on(turns):
    await turns.runs("running")
    gone, patient = await turns.waits("gone"), await turns.waits("patient")
    gone.cancel()  # its task has not run yet ...
    await turns.ends("running")  # ... when its turn comes
    await patient
    await cancelled(gone)
    assert await turns.load() == (1, 0)


async def test_a_query_that_is_cancelled_one_tick_after_its_turn_passes_it_on(turns):
    await turns.runs("running")
    gone, patient = await turns.waits("gone"), await turns.waits("patient")
    await turns.ends("running")
    await asyncio.sleep(0)  # the turn is set, and the task has not run yet
    assert not gone.done()
    gone.cancel()
    await patient
    await cancelled(gone)
    assert await turns.load() == (1, 0)


async def test_a_cancelled_turn_frees_what_it_reserved(turns):
    await turns.runs("running")
    gone = await turns.waits("gone", "ab")
    await turns.ends("running")
    assert [tier.used_tokens for tier in (await turns.controller.stats()).tiers] == [2]
    gone.cancel()
    await cancelled(gone)
    assert [tier.used_tokens for tier in (await turns.controller.stats()).tiers] == [0]
    assert await turns.load() == (0, 0)


async def test_a_query_still_waits_until_its_cancelled_task_has_run(turns):
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


# Completed waits


async def test_completing_a_waiting_query_cancels_its_wait(turns):
    await turns.runs("running")
    gone = await turns.waits("gone")
    await turns.ends("gone")
    await cancelled(gone)
    assert await turns.load() == (1, 0)
    with pytest.raises(UnknownPlan):
        await turns.ends("gone")


async def test_a_query_completed_as_its_turn_comes_gets_no_plan(turns):
    await turns.runs("running")
    gone, patient = await turns.waits("gone"), await turns.waits("patient")
    await turns.ends("running")  # makes it the turn of "gone" ...
    await turns.ends("gone")  # ... whose task has not run yet
    await patient
    await cancelled(gone)
    assert await turns.load() == (1, 0)


async def test_a_query_whose_lease_expires_before_its_task_runs_gets_no_plan(turns):
    await turns.runs("running")
    gone, patient = await turns.waits("gone"), await turns.waits("patient")
    await turns.ends("running")
    turns.clock.now = LEASE_S
    turns.controller.expire_leases()
    await patient
    await cancelled(gone)
    assert await turns.load() == (1, 0)


async def test_a_completed_wait_does_not_affect_the_same_query_admitted_again(turns):
    await turns.runs("running")
    first = await turns.waits("again")
    await turns.ends("again")
    await turns.ends("running")
    await turns.runs("again")  # takes the free slot before the first wait's task has run
    await cancelled(first)
    assert await turns.load() == (1, 0)
    await turns.ends("again")


async def test_a_completed_turn_does_not_affect_the_same_query_admitted_again(turns):
    await turns.runs("running")
    first = await turns.waits("again")
    await turns.ends("running")  # makes it the turn of the first wait ...
    await turns.ends("again")  # ... whose task has not run yet ...
    await turns.runs("again")  # ... when the query is admitted again
    await cancelled(first)
    assert await turns.load() == (1, 0)
    await turns.ends("again")


@pytest.mark.parametrize("cancelled_first", [True, False])
async def test_a_cancelled_wait_whose_turn_was_completed_frees_nothing_more(turns, cancelled_first):
    await turns.runs("running")
    gone, patient = await turns.waits("gone"), await turns.waits("patient")
    if cancelled_first:
        gone.cancel()
    await turns.ends("running")  # makes it the turn of "gone" ...
    await turns.ends("gone")  # ... and completes it before the task of "gone" has run
    if not cancelled_first:
        gone.cancel()
    await patient
    await cancelled(gone)
    assert await turns.load() == (1, 0)


async def test_a_cancelled_wait_whose_turn_expired_frees_nothing_more(turns):
    await turns.runs("running")
    gone, patient = await turns.waits("gone"), await turns.waits("patient")
    await turns.ends("running")
    turns.clock.now = LEASE_S
    turns.controller.expire_leases()
    gone.cancel()
    await patient
    await cancelled(gone)
    assert await turns.load() == (1, 0)


async def test_a_cancelled_wait_keeps_the_plan_of_the_same_query_admitted_again(turns):
    await turns.runs("running")
    first = await turns.waits("again")
    await turns.ends("running")
    await turns.ends("again")
    first.cancel()
    await turns.runs("again")
    await cancelled(first)
    assert await turns.load() == (1, 0)
    await turns.ends("again")
