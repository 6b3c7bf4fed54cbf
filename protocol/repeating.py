"""Background work: what runs, or is repeated, while a context is open, and how often it is tried."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import structlog

from protocol.errors import RagtreeError

log = structlog.get_logger(__name__)

MOST_ATTEMPTS = 3
"""Work is given up after this number of attempts, for any cause, and later work goes on."""

K = TypeVar("K", bound=Hashable)


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run ``work`` while the context is open, and cancel it at the end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


@asynccontextmanager
async def repeated(work: Callable[[], Awaitable[None]], pause_s: float | Callable[[], float]) -> AsyncIterator[None]:
    """Call ``work`` every ``pause_s`` seconds while the context is open. A callable gives each pause anew.

    A failure is logged, with its traceback if it is not a RagtreeError, and the work is tried again after the next
    pause.
    """
    async with in_background(_repeat(work, pause_s)):
        yield


async def _repeat(work: Callable[[], Awaitable[None]], pause_s: float | Callable[[], float]) -> None:
    while True:
        await asyncio.sleep(pause_s() if callable(pause_s) else pause_s)
        try:
            await work()
        except Exception as error:
            defect = None if isinstance(error, RagtreeError) else error
            name = getattr(work, "__qualname__", repr(work))
            log.warning("repeated_work_failed", work=name, error=repr(error), exc_info=defect)


class AttemptCounts(Generic[K]):
    """Counts the attempts at each work of a queue in memory, before they begin: they may kill who does the work.

    A durable queue keeps its counts beside its work.
    """

    def __init__(self) -> None:
        self._counts: Counter[K] = Counter()

    def exhausted(self, work: K) -> bool:
        """Whether there were as many attempts as there may be."""
        return self._counts[work] >= MOST_ATTEMPTS

    def count(self, work: K) -> None:
        """Count an attempt."""
        self._counts[work] += 1

    def give_up(self, work: K) -> None:
        """Try no more, because the work is known to be the cause of what has ended an attempt."""
        self._counts[work] = MOST_ATTEMPTS

    def take_back(self, work: K) -> None:
        """Count one attempt less: it was ended for a reason that has nothing to do with the work."""
        if self._counts[work] > 1:
            self._counts[work] -= 1
        else:
            self.forget(work)

    def forget(self, work: K) -> None:
        """Forget the attempts at work that has succeeded, or that is given up."""
        self._counts.pop(work, None)
