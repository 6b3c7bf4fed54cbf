"""Tasks that outlive the requests that started them, such as the closing of remote iterators."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import structlog

CLOSE_TIMEOUT_S = 5.0

log = structlog.get_logger(__name__)


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
    """Close ``iterator`` within ``CLOSE_TIMEOUT_S``, which stops the work behind it. Logs errors, never raises them."""
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
