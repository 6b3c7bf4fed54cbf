"""Keeps a controller's snapshot up to date elsewhere."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cachectl.runtime.controller import Controller
from cachectl.tree.snapshot import EMPTY_SNAPSHOT, SnapshotStore
from protocol.repeating import repeated


class SnapshotSaver:
    """Has what a ``controller`` remembers kept in a ``store``: every ``interval_s`` seconds, and when told to.

    Only what has changed goes there. All of it is kept anew at first, as nobody knows in what state a former controller
    left it, and where the store may have missed something.
    """

    def __init__(self, controller: Controller, store: SnapshotStore, interval_s: float) -> None:
        self._controller = controller
        self._store = store
        self._interval_s = interval_s
        self._kept = EMPTY_SNAPSHOT
        self._turn = asyncio.Lock()

    async def keep(self) -> None:
        """Keep what there is now."""
        if not self._store.keeps:
            return
        async with self._turn:
            now = await self._controller.snapshot()
            kept = await self._store.keep(self._kept, now)
            self._kept = now if kept else EMPTY_SNAPSHOT

    @asynccontextmanager
    async def saving(self) -> AsyncIterator[None]:
        """Keep it at every interval for as long as the context is open."""
        async with repeated(self.keep, self._interval_s):
            yield
