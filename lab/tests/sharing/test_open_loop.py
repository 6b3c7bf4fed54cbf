"""Queries on a schedule."""

import asyncio
import time

import pytest

from examine.measuring.engines import Generation
from protocol.errors import EngineDied
from protocol.generation import PrefillResult
from ragtree_lab.sharing.open_loop import arriving

ANSWER = Generation(5.0, PrefillResult(10, 5, 1.0), "", ())


async def test_queries_arrive_at_the_rate_while_earlier_ones_have_no_answer():
    released = asyncio.Event()
    arrived: list[float] = []

    async def ask() -> Generation:
        arrived.append(time.monotonic())
        if len(arrived) == 4:
            released.set()
        await released.wait()
        return ANSWER

    began = time.monotonic()
    assert len(await arriving([ask] * 4, 20)) == 4
    assert all(at - began >= number / 20 for number, at in enumerate(arrived))


async def test_times_count_from_when_a_query_was_due():
    async def blocking() -> Generation:
        time.sleep(0.2)  # noqa: ASYNC251 - keeps the next query from being asked in time
        return ANSWER

    async def ask() -> Generation:
        return ANSWER

    first, second = await arriving([blocking, ask], 100)
    assert first is not None
    assert second is not None
    assert second.ttft_ms >= 190 + ANSWER.ttft_ms
    assert second.first_token_at - first.first_token_at == pytest.approx(
        0.01 + (second.ttft_ms - first.ttft_ms) / 1000, abs=1e-6
    )


async def test_an_error_is_no_answer_and_ends_nothing():
    async def ask() -> Generation:
        return ANSWER

    async def failing() -> Generation:
        raise EngineDied("gone")

    came = await arriving([ask, failing, ask], 1000)
    assert [arrived is None for arrived in came] == [False, True, False]


async def test_no_more_are_asked_once_one_is_enough():
    asked = 0

    async def ask() -> Generation:
        nonlocal asked
        asked += 1
        return ANSWER

    # The next one would be due in a minute.
    came = await asyncio.wait_for(arriving([ask] * 100, 1 / 60, lambda _: True), 10)
    assert len(came) == asked == 1
