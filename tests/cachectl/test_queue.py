"""The admission queue keeps its bounds and its order under any interleaving."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachectl.queue import AdmissionQueue
from protocol.errors import Overloaded


async def _until_waiting(queue: AdmissionQueue, count: int) -> None:
    while queue.queued != count:
        await asyncio.sleep(0)


async def test_serves_in_order_of_arrival():
    queue = AdmissionQueue(max_running=1, max_queued=10)
    await queue.enter("first")
    served: list[str] = []

    async def wait_for(name: str) -> None:
        await queue.enter(name)
        served.append(name)

    tasks = []
    for position, name in enumerate(["b", "c", "a"], start=1):
        tasks.append(asyncio.create_task(wait_for(name)))
        await _until_waiting(queue, position)
    for holder, task in zip(["first", "b", "c"], tasks, strict=True):
        queue.leave(holder)
        await task
    assert served == ["b", "c", "a"]


async def test_refuses_at_once_when_full():
    queue = AdmissionQueue(max_running=1, max_queued=1)
    await queue.enter("running")
    waiting = asyncio.create_task(queue.enter("waiting"))
    await _until_waiting(queue, 1)
    with pytest.raises(Overloaded):
        await queue.enter("refused")
    queue.leave("running")
    await waiting
    assert (queue.running, queue.queued) == (1, 0)


async def test_a_turn_that_comes_as_its_query_is_cancelled_goes_to_the_next():
    queue = AdmissionQueue(max_running=1, max_queued=10)
    await queue.enter("running")
    gone = asyncio.create_task(queue.enter("gone"))
    await _until_waiting(queue, 1)
    patient = asyncio.create_task(queue.enter("patient"))
    await _until_waiting(queue, 2)
    queue.leave("running")  # hands the place to "gone" ...
    gone.cancel()  # ... which leaves in the same tick
    await patient
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert (queue.running, queue.queued) == (1, 0)
    queue.check_integrity()


async def test_leaving_twice_frees_one_place():
    queue = AdmissionQueue(max_running=1, max_queued=2)
    await queue.enter("a")
    tasks = [asyncio.create_task(queue.enter(name)) for name in "bc"]
    await _until_waiting(queue, 2)
    assert queue.leave("a")
    assert not queue.leave("a")
    await tasks[0]
    assert (queue.running, queue.queued) == (1, 1)
    queue.leave("b")
    await tasks[1]


@given(
    max_running=st.integers(1, 3),
    max_queued=st.integers(0, 3),
    steps=st.lists(st.tuples(st.sampled_from(["enter", "leave", "cancel"]), st.integers(0, 7)), max_size=60),
)
def test_bounds_hold_and_nothing_leaks(max_running, max_queued, steps):
    async def run() -> None:
        queue = AdmissionQueue(max_running, max_queued)
        tasks: dict[int, asyncio.Task[None]] = {}
        for action, number in steps:
            task = tasks.get(number)
            if action == "enter" and task is None:
                tasks[number] = asyncio.create_task(queue.enter(str(number)))
            elif action == "leave":
                queue.leave(str(number))
                tasks.pop(number, None)
            elif action == "cancel" and task is not None and not task.done():
                task.cancel()
                tasks.pop(number)
            for _ in range(3):
                await asyncio.sleep(0)
            queue.check_integrity()
            for key in [key for key, task in tasks.items() if task.done() and task.exception()]:
                assert isinstance(tasks.pop(key).exception(), Overloaded)
        for number in range(8):
            queue.leave(str(number))
        assert (queue.running, queue.queued) == (0, 0)

    asyncio.run(run())
