"""The time a query has left."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import TypeVar

from protocol.errors import DeadlineExceeded

T = TypeVar("T")


class Deadline:
    """A point in time, ``seconds`` from now, that bounds every await it is given.

    It bounds single awaits rather than a block, because a generator that yields inside ``asyncio.timeout`` would cancel
    whichever task happened to start it. Everything here raises DeadlineExceeded when time is up: ``what`` was not done.
    """

    def __init__(self, seconds: float, what: str = "The query was not answered") -> None:
        self._seconds = seconds
        self._what = what
        self._at = asyncio.get_running_loop().time() + seconds

    async def wait(self, awaitable: Awaitable[T], within_s: float | None = None) -> T:
        """Await with the time left, and with at most ``within_s`` of it."""
        at = self._at
        if within_s is not None:
            at = min(at, asyncio.get_running_loop().time() + within_s)
        timeout = asyncio.timeout_at(at)
        try:
            async with timeout:
                return await awaitable
        except TimeoutError:
            if not timeout.expired():
                raise
            raise DeadlineExceeded(f"{self._what} in time (limit {self._seconds:g} s).") from None

    async def each(self, source: AsyncIterator[T], first_within_s: float | None = None) -> AsyncGenerator[T]:
        """The items of ``source``; closing ``source`` stays with its owner."""
        within_s = first_within_s
        while True:
            try:
                item = await self.wait(anext(source), within_s)
            except StopAsyncIteration:
                return
            yield item
            within_s = None
