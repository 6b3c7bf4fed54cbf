"""Windows that count what a caller did in the last minute, in constant memory each."""

import math
from typing import NamedTuple, Protocol

from limits.aio.storage.base import SlidingWindowCounterSupport

PERIOD_S = 60
_ANYTHING = 2**53
"""A limit that nothing reaches, still exact where numbers are doubles."""


class Standing(NamedTuple):
    """How a window stands: ``room`` of its ``limit`` is left.

    One more fits in ``wait_s`` seconds, 0 if it does now; nothing that was counted until now counts in ``reset_s``.
    """

    limit: int
    room: int
    wait_s: float
    reset_s: float

    @property
    def retry_after_s(self) -> int:
        """The first whole second at which one more fits."""
        return math.floor(self.wait_s) + 1


class Windows(Protocol):
    """Windows by key. Those of one key are counted together, whoever shares the store."""

    async def take(self, key: str, limit: int) -> bool:
        """Count one more if it fits; whether it did."""

    async def charge(self, key: str, amount: int) -> None:
        """Count what was used, whether it fits or not: what is above the limit is a debt that runs off by and by."""

    async def standing(self, key: str, limit: int) -> Standing:
        """How the key's window stands against a limit; counts nothing."""


class SlidingWindows:
    """Windows over a storage of the ``limits`` library, of two counters each.

    What was counted in the minute before the present one, as the clock cuts them, counts by the share of it that the
    last 60 seconds cover.
    """

    def __init__(self, storage: SlidingWindowCounterSupport, period_s: int = PERIOD_S) -> None:
        self._storage = storage
        self._period_s = period_s

    async def take(self, key: str, limit: int) -> bool:
        """Count one more if it fits; whether it did."""
        return await self._storage.acquire_sliding_window_entry(key, limit, self._period_s, 1)

    async def charge(self, key: str, amount: int) -> None:
        """Count what was used, whether it fits or not."""
        await self._storage.acquire_sliding_window_entry(key, _ANYTHING, self._period_s, amount)

    async def standing(self, key: str, limit: int) -> Standing:
        """How the key's window stands against a limit."""
        before, _, now, ends_s = await self._storage.get_sliding_window(key, self._period_s)
        # The storage keeps the present counter for one period longer than it is the present one.
        left_s = max(0.0, ends_s - self._period_s)
        counted = before * left_s / self._period_s + now
        room = max(0, limit - math.floor(counted))
        wait_s = 0.0 if room else self._wait_s(before, now, left_s, limit)
        reset_s = left_s + self._period_s if now else left_s if before else 0.0
        return Standing(limit, room, wait_s, reset_s)

    def _wait_s(self, before: int, now: int, left_s: float, limit: int) -> float:
        """When the count of a full window falls below the limit."""
        if now < limit:
            return left_s - (limit - now) * self._period_s / before
        return left_s + self._period_s * (1 - limit / now)
