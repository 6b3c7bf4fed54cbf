"""Work that is done again and again beside other work."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager


@asynccontextmanager
async def repeated(work: Callable[[], Awaitable[None]], pause_s: float) -> AsyncIterator[None]:
    """Calls ``work`` after every ``pause_s`` seconds for as long as the context is open, or until it raises."""
    task = asyncio.create_task(_repeat(work, pause_s))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _repeat(work: Callable[[], Awaitable[None]], pause_s: float) -> None:
    while True:
        await asyncio.sleep(pause_s)
        await work()
