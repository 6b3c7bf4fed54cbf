"""The contract of rate-limit windows. Subclasses have a fixture ``make``, with periods of one second."""

import asyncio
import time

import pytest

PERIOD_S = 1


class WindowsContract:
    @pytest.fixture(autouse=True)
    def not_across_two_periods(self):
        """Wait for the next window if the current one is about to end. Windows follow the wall clock."""
        if (left_s := PERIOD_S - time.time() % PERIOD_S) < 0.3:
            time.sleep(left_s)

    async def test_takes_are_allowed_up_to_the_limit(self, windows):
        assert [await windows.take("a", 3) for _ in range(5)] == [True, True, True, False, False]
        standing = await windows.standing("a", 3)
        assert (standing.limit, standing.room) == (3, 0)
        assert 0 < standing.wait_s <= 2 * PERIOD_S
        assert standing.wait_s <= standing.reset_s <= 2 * PERIOD_S

    async def test_fresh_window_has_its_full_room(self, windows):
        assert await windows.standing("a", 3) == (3, 3, 0.0, 0.0)

    async def test_keys_are_counted_separately(self, windows):
        assert [await windows.take("a", 1) for _ in range(2)] == [True, False]
        assert await windows.take("b", 1)

    async def test_debt_is_charged_in_full_and_expires(self, windows):
        await windows.charge("a", 40)
        standing = await windows.standing("a", 10)
        assert standing.room == 0
        assert not await windows.take("a", 10)
        # At least three quarters into the next period, and before its end.
        assert 0.7 * PERIOD_S <= standing.wait_s <= 2 * PERIOD_S

    async def test_room_returns_at_the_reported_time(self, windows):
        # This charge fills the current period and most of the next.
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
        assert max(earliest) - min(latest) < 0.1, "the reported time stays the same"
        assert refused_at < min(latest) + 0.1
        assert took_at > max(earliest) - 0.1

    async def test_concurrent_takes_stay_within_the_limit(self, windows):
        taken = await asyncio.gather(*(windows.take("a", 7) for _ in range(40)))
        assert sum(taken) == 7
