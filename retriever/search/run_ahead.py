"""A thread's work, item by item, on the event loop."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import Executor
from contextlib import closing
from typing import TypeVar

T = TypeVar("T")


async def run_ahead(pool: Executor, work: Generator[T, None, None]) -> AsyncGenerator[T, None]:
    """The items of ``work``, which goes on in a thread of ``pool`` while the caller thinks about one.

    Closing this ends the work after the item in hand, and then the thread is free. Raises what the work raises, after
    the items before.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Queue[tuple[T] | None] = asyncio.Queue()
    closed = threading.Event()

    def go_on() -> None:
        with closing(work):
            for item in work:
                if closed.is_set():
                    return
                loop.call_soon_threadsafe(done.put_nowait, (item,))

    thread = loop.run_in_executor(pool, go_on)
    # The loop hears of the end after all that was put before.
    thread.add_done_callback(lambda _: done.put_nowait(None))
    try:
        while (item := await done.get()) is not None:
            yield item[0]
        await thread
    finally:
        closed.set()
        # It may not even have begun, if all threads of the pool are taken.
        thread.cancel()
