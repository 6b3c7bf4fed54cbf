"""The contract of rate-limit windows. Subclasses have a fixture ``make``, with periods of one second."""

import asyncio
import time

import pytest

PERIOD_S = 1


class WindowsContract:
    @pytest.fixture(autouse=True)
    def not_across_two_periods(self):
        """Windows start by the wall clock. A test that begins just before a new window would see both."""
        if (left_s := PERIOD_S - time.time() % PERIOD_S) < 0.3:
            time.sleep(left_s)

    async def test_as_many_fit_as_the_limit_says(self, windows):
        assert [await windows.take("a", 3) for _ in range(5)] == [True, True, True, False, False]
        standing = await windows.standing("a", 3)
        assert (standing.limit, standing.room) == (3, 0)
        assert 0 < standing.wait_s <= 2 * PERIOD_S
        assert standing.wait_s <= standing.reset_s <= 2 * PERIOD_S

    async def test_a_fresh_window_has_all_its_room(self, windows):
        assert await windows.standing("a", 3) == (3, 3, 0.0, 0.0)

    async def test_keys_do_not_count_for_each_other(self, windows):
        assert [await windows.take("a", 1) for _ in range(2)] == [True, False]
        assert await windows.take("b", 1)

    async def test_a_debt_is_charged_whole_and_runs_off(self, windows):
        await windows.charge("a", 40)
        standing = await windows.standing("a", 10)
        assert standing.room == 0
        assert not await windows.take("a", 10)
        # At least three quarters into the next period, and before its end.
        assert 0.7 * PERIOD_S <= standing.wait_s <= 2 * PERIOD_S

    async def test_there_is_room_when_it_says_and_not_before(self, windows):
        # Enough to fill this period and most of the next.
        await windows.charge("a", 40)
        earliest, latest, refused_at = [], [], 0.0
        while True:
            asked_at = time.monotonic()
            if await windows.take("a", 10):
                break
            refused_at = asked_at
            standing = await windows.standing("a", 10)
            if not standing.room:
                earliest.append(asked_at + standing.wait_s)
                latest.append(time.monotonic() + standing.wait_s)
            await asyncio.sleep(0.01)
        took_at = time.monotonic()
        assert max(earliest) - min(latest) < 0.1, "it says the same all the time"
        assert refused_at < min(latest) + 0.1
        assert took_at > max(earliest) - 0.1

    async def test_many_at_once_are_never_more_than_the_limit(self, windows):
        taken = await asyncio.gather(*(windows.take("a", 7) for _ in range(40)))
        assert sum(taken) == 7
