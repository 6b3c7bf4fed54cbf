"""Background work: what runs, or is repeated, while a context is open."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import structlog

from protocol.errors import RagtreeError

log = structlog.get_logger(__name__)


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
