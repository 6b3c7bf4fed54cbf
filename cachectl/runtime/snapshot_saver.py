"""Saves the controller's snapshots to a store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cachectl.runtime.recovery import Recovery
from cachectl.tree.snapshot import EMPTY_SNAPSHOT, SnapshotStore
from protocol.repeating import repeated

_INTERVAL_S = 5.0


class SnapshotSaver:
    """Saves snapshots to a ``store``: every five seconds, and on demand.

    Only changes are written. The first save writes everything, because the state that a former controller left is
    unknown. So does the save after one that the store may have missed.
    """

    def __init__(self, recovery: Recovery, store: SnapshotStore) -> None:
        self._recovery = recovery
        self._store = store
        self._saved = EMPTY_SNAPSHOT
        self._lock = asyncio.Lock()

    async def save(self) -> None:
        """Save the current state."""
        if not self._store.keeps:
            return
        async with self._lock:
            now = await self._recovery.snapshot()
            saved = await self._store.keep(self._saved, now)
            self._saved = now if saved else EMPTY_SNAPSHOT

    @asynccontextmanager
    async def saving(self) -> AsyncIterator[None]:
        """Save at every interval while the context is open."""
        async with repeated(self.save, _INTERVAL_S):
            yield
