"""Lets one process after another measure: two that measure the same engine at once disturb each other."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


@asynccontextmanager
async def one_at_a_time(folder: Path) -> AsyncIterator[None]:
    """Hold a lock on a folder that the processes share, which ends with the process. Without a folder, hold none."""
    descriptor = _opened(folder)
    if descriptor is None:
        # Nothing can be kept there, so others have to measure in any case.
        yield
        return
    try:
        await asyncio.to_thread(fcntl.flock, descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _opened(folder: Path) -> int | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return None
