"""Work that grows with what callers send, kept off the gateway's only loop.

Nothing may hold the loop for longer than 5 ms, because all other callers wait meanwhile. Short work stays on it: a
thread costs more than it.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

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
