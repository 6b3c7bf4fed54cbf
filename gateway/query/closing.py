"""Closing of remote iterators, bounded in time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import structlog

CLOSE_TIMEOUT_S = 5.0

log = structlog.get_logger(__name__)


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
