"""Background work that repeats."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog

from protocol.errors import RagtreeError

log = structlog.get_logger(__name__)


@asynccontextmanager
async def repeated(work: Callable[[], Awaitable[None]], pause_s: float) -> AsyncIterator[None]:
    """Call ``work`` every ``pause_s`` seconds while the context is open.

    A failure is logged, with its traceback if it is not a RagtreeError, and the work is tried again after the next
    pause.
    """
    task = asyncio.create_task(_repeat(work, pause_s))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _repeat(work: Callable[[], Awaitable[None]], pause_s: float) -> None:
    while True:
        await asyncio.sleep(pause_s)
        try:
            await work()
        except Exception as error:
            defect = None if isinstance(error, RagtreeError) else error
            name = getattr(work, "__qualname__", repr(work))
            log.warning("repeated_work_failed", work=name, error=repr(error), exc_info=defect)
