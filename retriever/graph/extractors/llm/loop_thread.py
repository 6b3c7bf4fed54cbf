"""An event loop in a thread of its own, for callers that are not asynchronous."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from protocol.errors import Unavailable

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for other threads. The first one starts the thread. Thread-safe.

    ``at_end`` runs on the loop when it is closed, if anything has run before.
    """

    def __init__(self, name: str, at_end: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._at_end = at_end
        self._lock = threading.Lock()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what ``work`` returns. Raises what it raises, and Unavailable if this is closed before it ends."""
        with self._lock:
            if self._closed:
                raise Unavailable(f"{self._name} is closed")
            future = asyncio.run_coroutine_threadsafe(work(), self._running())
        try:
            return future.result()
        except CancelledError as error:
            raise Unavailable(f"{self._name} was closed") from error

    def close(self) -> None:
        """Cancel what runs, and end the thread."""
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(self._end(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=loop.run_forever, name=self._name, daemon=True)
            self._thread.start()
            self._loop = loop
        return self._loop

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._at_end()
