"""Admission keeps its bounds, and every turn reaches somebody, under any interleaving."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachectl.admission import AdmissionQueue
from cachectl.queue import CacheAwareQueue
from protocol.errors import InvalidRequest, Overloaded


def _admission(max_running: int, max_queued: int, window: int = 0) -> AdmissionQueue:
    return AdmissionQueue(max_running, CacheAwareQueue(max_queued, window))


async def _waiting(admission: AdmissionQueue, name: str, cached: int = 0) -> asyncio.Task[None]:
    """A task that waits for a place once this returns."""
    queued = admission.queued
    task = asyncio.create_task(admission.enter(name, cached, 1))
    while admission.queued == queued:
        await asyncio.sleep(0)
    return task


@pytest.mark.parametrize(("window", "order"), [(0, ["b", "c", "a"]), (1, ["c", "b", "a"]), (9, ["c", "a", "b"])])
async def test_serves_in_the_order_of_its_queue(window, order):
    admission = _admission(1, 10, window)
    await admission.enter("first", 0, 1)
    served: list[str] = []

    async def serve(name: str, turn: asyncio.Task[None]) -> None:
        await turn
        served.append(name)

    tasks = [serve(name, await _waiting(admission, name, cached)) for name, cached in [("b", 0), ("c", 9), ("a", 5)]]
    running = asyncio.gather(*tasks)
    for holder in ["first", *order[:-1]]:
        assert admission.leave(holder)
        admission.check_integrity()
        for _ in range(5):
            await asyncio.sleep(0)
    await running
    assert served == order


async def test_who_waits_may_be_reprioritised_in_the_queue():
    queue = CacheAwareQueue(max_queued=10, window=9)
    admission = AdmissionQueue(1, queue)
    await admission.enter("first", 0, 1)
    a, b = await _waiting(admission, "a", 1), await _waiting(admission, "b", 0)
    queue.reprioritise("b", 5, 1)
    admission.leave("first")
    await b
    assert not a.done()
    admission.leave("b")
    await a


async def test_a_query_holds_one_place_however_often_it_enters():
    admission = _admission(1, 10)
    await admission.enter("a", 0, 1)
    await admission.enter("a", 0, 1)
    assert (admission.running, admission.queued) == (1, 0)


async def test_refuses_at_once_when_full():
    admission = _admission(1, 1)
    await admission.enter("running", 0, 1)
    waiting = await _waiting(admission, "waiting")
    with pytest.raises(Overloaded):
        await admission.enter("refused", 9, 1)
    admission.leave("running")
    await waiting
    assert (admission.running, admission.queued) == (1, 0)


async def test_a_second_wait_of_one_query_is_refused_and_the_first_goes_on():
    admission = _admission(1, 10)
    await admission.enter("running", 0, 1)
    first = await _waiting(admission, "twice")
    with pytest.raises(InvalidRequest):
        await admission.enter("twice", 0, 1)
    admission.leave("running")
    await first


async def test_a_turn_that_comes_as_its_query_is_cancelled_goes_to_the_next():
    admission = _admission(1, 10)
    await admission.enter("running", 0, 1)
    gone, patient = await _waiting(admission, "gone"), await _waiting(admission, "patient")
    admission.leave("running")  # hands the place to "gone" ...
    gone.cancel()  # ... which leaves in the same tick
    await patient
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert (admission.running, admission.queued) == (1, 0)
    admission.check_integrity()


async def test_a_query_that_is_cancelled_as_its_turn_comes_passes_it_on():
    admission = _admission(1, 10)
    await admission.enter("running", 0, 1)
    gone, patient = await _waiting(admission, "gone"), await _waiting(admission, "patient")
    gone.cancel()  # it has not heard of this yet ...
    admission.leave("running")  # ... when it is given the place
    admission.check_integrity()
    await patient
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert (admission.running, admission.queued) == (1, 0)
    admission.check_integrity()


async def test_leaving_a_wait_ends_it_cancelled():
    admission = _admission(1, 10)
    await admission.enter("running", 0, 1)
    gone = await _waiting(admission, "gone")
    assert admission.leave("gone")
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert (admission.running, admission.queued) == (1, 0)
    assert not admission.leave("gone")


async def test_leaving_as_the_turn_comes_gives_no_place():
    admission = _admission(1, 10)
    await admission.enter("running", 0, 1)
    gone, patient = await _waiting(admission, "gone"), await _waiting(admission, "patient")
    admission.leave("running")  # hands the place to "gone" ...
    assert admission.leave("gone")  # ... which has not heard of it
    await patient
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert (admission.running, admission.queued) == (1, 0)


async def test_a_wait_that_was_left_takes_nothing_from_the_same_query_come_again():
    admission = _admission(1, 10)
    await admission.enter("running", 0, 1)
    first = await _waiting(admission, "again")
    admission.leave("again")
    admission.leave("running")
    await admission.enter("again", 0, 1)  # takes the free place before the first wait has heard of its end
    with pytest.raises(asyncio.CancelledError):
        await first
    assert admission.running == 1
    assert admission.leave("again")


async def test_leaving_twice_frees_one_place():
    admission = _admission(1, 2)
    await admission.enter("a", 0, 1)
    b, c = await _waiting(admission, "b"), await _waiting(admission, "c")
    assert admission.leave("a")
    assert not admission.leave("a")
    await b
    assert (admission.running, admission.queued) == (1, 1)
    admission.leave("b")
    await c


@given(
    max_running=st.integers(1, 3),
    max_queued=st.integers(0, 3),
    window=st.integers(0, 2),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["enter", "leave", "cancel"]), st.integers(0, 7), st.integers(0, 3), st.integers(0, 3)
        ),
        max_size=60,
    ),
)
def test_bounds_hold_and_nothing_leaks(max_running, max_queued, window, steps):
    async def run() -> None:
        admission = _admission(max_running, max_queued, window)
        tasks: dict[int, asyncio.Task[None]] = {}
        ended: list[asyncio.Task[None]] = []
        for action, number, cached, ticks in steps:
            task = tasks.get(number)
            if action == "enter" and task is None:
                tasks[number] = asyncio.create_task(admission.enter(str(number), cached, 1))
            elif action == "leave" and task is not None:
                left = admission.leave(str(number))
                # Where it had not even begun to enter there was nothing to leave, and it is still to come.
                if left:
                    ended.append(tasks.pop(number))
            elif action == "cancel" and task is not None and not task.done():
                task.cancel()
                ended.append(tasks.pop(number))
            admission.check_integrity()
            # None at all lets events meet in one moment.
            for _ in range(ticks):
                await asyncio.sleep(0)
            admission.check_integrity()
            for key in [key for key, task in tasks.items() if task.done() and task.exception()]:
                assert isinstance(tasks.pop(key).exception(), Overloaded | InvalidRequest)
        for _ in range(5):
            await asyncio.sleep(0)
        admission.check_integrity()
        assert all(task.done() for task in ended)
        holding = [number for number, task in tasks.items() if task.done() and not task.exception()]
        assert len(holding) == admission.running
        assert admission.running == max_running or admission.queued == 0
        for number in range(8):
            admission.leave(str(number))
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert (admission.running, admission.queued) == (0, 0)

    asyncio.run(run())
