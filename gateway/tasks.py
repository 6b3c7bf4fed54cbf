"""How the gateway waits: tasks that outlive their requests, threads, and deadlines.

Nothing may hold its only loop for longer than 5 ms, because all other callers wait meanwhile. So work that grows with
what callers send is kept off it. Short work stays on it: a thread costs more than it.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import structlog

from protocol.errors import DeadlineExceeded

CLOSE_TIMEOUT_S = 5.0

log = structlog.get_logger(__name__)


class Ends(ABC):
    """A context manager that ends what it has begun, with the error of its block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(error)

    @abstractmethod
    def end(self, error: BaseException | None) -> object:
        """End it; ``error`` is what the block raised."""


class BackgroundTasks:
    """Keeps references to running tasks, and waits for them at shutdown.

    A cancelled request cannot await a remote call in its ``finally``: the call never finishes. Cleanup of this kind
    runs here instead. Each gateway has one instance.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` to completion, even if the caller is cancelled."""
        # The event loop only holds weak references to tasks.
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self, timeout_s: float) -> None:
        """Wait for the running tasks, for at most ``timeout_s`` seconds."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)


async def close_iterator(iterator: AsyncIterator[Any]) -> None:
    """Close ``iterator`` within ``CLOSE_TIMEOUT_S``, which stops its work. Logs errors, never raises them."""
    aclose = getattr(iterator, "aclose", None)
    if aclose is None:
        return
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await aclose()
    except Exception as error:
        log.warning("stream_not_closed", error=repr(error))


async def finish_iterator(iterator: AsyncIterator[Any]) -> None:
    """Read the end of ``iterator``, which has no more items, and close it as ``close_iterator`` does.

    Closing it at once would cancel work that ends by itself.
    """
    with contextlib.suppress(Exception):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await anext(iterator, None)
    await close_iterator(iterator)


SHORT = 8192
"""Characters of text that are tokenised, cut into words or validated within 3 ms."""

ITEM = 100
"""Characters that take as long as one message or query to convert, besides its text."""

T = TypeVar("T")


async def off_loop(characters: int, work: Callable[[], T]) -> T:
    """The result of ``work`` on this number of characters, in a thread if it is large. Raises what ``work`` raises.

    The threads are those of the loop's default executor, so there is a bound on them. Work that is cancelled runs on,
    and nobody gets its result.
    """
    return work() if characters <= SHORT else await asyncio.to_thread(work)


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
