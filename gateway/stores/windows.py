"""Sliding windows that count a caller's use in the last minute, each in constant memory."""

import math
from typing import NamedTuple, Protocol

from limits.aio.storage.base import SlidingWindowCounterSupport

PERIOD_S = 60
_ANYTHING = 2**53
"""A limit that is never reached, and that a double represents exactly."""


class Standing(NamedTuple):
    """State of a window: ``room`` of its ``limit`` is left.

    One more fits after ``wait_s`` seconds, 0 if it fits now. All that is counted now has expired after ``reset_s``.
    """

    limit: int
    room: int
    wait_s: float
    reset_s: float

    @property
    def retry_after_s(self) -> int:
        """First whole second at which one more fits."""
        return math.floor(self.wait_s) + 1


class Windows(Protocol):
    """Windows by key. Gateways that share the store share the windows."""

    async def take(self, key: str, limit: int) -> bool:
        """Count one more if it fits. Returns whether it did."""

    async def charge(self, key: str, amount: int) -> None:
        """Count ``amount`` even if it exceeds the limit. The excess is a debt that expires with the window."""

    async def standing(self, key: str, limit: int) -> Standing:
        """State of the key's window for a limit. Counts nothing."""


class SlidingWindows:
    """Windows in a storage of the ``limits`` library, with two counters each.

    The count of the previous clock minute is weighted by the share of it that the last 60 seconds cover.
    """

    def __init__(self, storage: SlidingWindowCounterSupport, period_s: int = PERIOD_S) -> None:
        self._storage = storage
        self._period_s = period_s

    async def take(self, key: str, limit: int) -> bool:
        """Count one more if it fits. Returns whether it did."""
        return await self._storage.acquire_sliding_window_entry(key, limit, self._period_s, 1)

    async def charge(self, key: str, amount: int) -> None:
        """Count ``amount`` even if it exceeds the limit."""
        await self._storage.acquire_sliding_window_entry(key, _ANYTHING, self._period_s, amount)

    async def standing(self, key: str, limit: int) -> Standing:
        """State of the key's window for a limit."""
        before, _, now, ends_s = await self._storage.get_sliding_window(key, self._period_s)
        # The storage keeps the current counter for one more period.
        left_s = max(0.0, ends_s - self._period_s)
        counted = before * left_s / self._period_s + now
        room = max(0, limit - math.floor(counted))
        wait_s = 0.0 if room else self._wait_s(before, now, left_s, limit)
        reset_s = left_s + self._period_s if now else left_s if before else 0.0
        return Standing(limit, room, wait_s, reset_s)

    def _wait_s(self, before: int, now: int, left_s: float, limit: int) -> float:
        """Seconds until the count of a full window falls below the limit."""
        if now < limit:
            return left_s - (limit - now) * self._period_s / before
        return left_s + self._period_s * (1 - limit / now)
