"""The time a query has left."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import TypeVar

from protocol.errors import DeadlineExceeded

T = TypeVar("T")


class Deadline:
    """A point in time, ``seconds`` from now, that bounds every await passed to it.

    It bounds single awaits instead of a block: a generator that yields inside ``asyncio.timeout`` would cancel the task
    that happened to start it. All methods raise DeadlineExceeded when the time is up, with ``what`` in its message.
    """

    def __init__(self, seconds: float, what: str = "The query was not answered") -> None:
        self._seconds = seconds
        self._what = what
        self._at = asyncio.get_running_loop().time() + seconds

    async def wait(self, awaitable: Awaitable[T], within_s: float | None = None) -> T:
        """Await within the time left, and within ``within_s`` if given."""
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
        """Yield the items of ``source``, the first one within ``first_within_s``. Does not close ``source``."""
        within_s = first_within_s
        while True:
            try:
                item = await self.wait(anext(source), within_s)
            except StopAsyncIteration:
                return
            yield item
            within_s = None
