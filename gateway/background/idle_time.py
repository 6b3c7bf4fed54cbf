"""Work for times in which no query runs."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from gateway.query.runs import QueryRuns
from gateway.readiness import Readiness
from protocol.errors import EngineFailed, Unavailable

T = TypeVar("T")

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0


class IdleTime:
    """Runs work while no query of this gateway runs, and begins it again after a query has interrupted it.

    One work runs at a time. Others wait for their turn, in the order of their arrival.
    """

    def __init__(self, runs: QueryRuns, readiness: Readiness) -> None:
        self._runs = runs
        self._readiness = readiness
        # The controller takes no work while other work runs, so two at once would only refuse each other.
        self._turn = asyncio.Lock()

    async def spend(self, work: Callable[[], Coroutine[Any, Any, T | None]]) -> T:
        """The result of ``work``. Repeats it after an interruption, or if it returns None because the stack is busy."""
        wait_s = _FIRST_WAIT_S
        while True:
            await self._runs.wait_idle()
            async with self._turn:
                result = await self._attempt(work)
            if result is not None:
                return result
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    async def _attempt(self, work: Callable[[], Coroutine[Any, Any, T | None]]) -> T | None:
        if self._readiness.missing():
            return None
        try:
            return await self._unless_interrupted(work())
        except (Unavailable, EngineFailed):
            # Otherwise the next work would meet the same dead part.
            await self._readiness.check()
            raise

    async def _unless_interrupted(self, work: Coroutine[Any, Any, T | None]) -> T | None:
        """The result of ``work``, or None if a query arrives first, which cancels the work."""
        working = asyncio.create_task(work)
        arrival = asyncio.create_task(self._runs.wait_busy())
        try:
            await asyncio.wait({working, arrival}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            working.cancel()
            arrival.cancel()
            await asyncio.wait({working, arrival})
