"""The queue in front of an instance: first come, first served, within bounds."""

import asyncio
from collections import OrderedDict

from protocol.errors import Overloaded


class AdmissionQueue:
    """At most ``max_running`` queries hold a place at once, at most ``max_queued`` wait for one, in order of arrival.

    A query holds one place, however often it enters. Belongs to one event loop.
    """

    def __init__(self, max_running: int, max_queued: int) -> None:
        self._max_running = max_running
        self._max_queued = max_queued
        self._running: set[str] = set()
        self._waiting: OrderedDict[str, asyncio.Future[None]] = OrderedDict()

    @property
    def running(self) -> int:
        """Queries that hold a place."""
        return len(self._running)

    @property
    def queued(self) -> int:
        """Queries that wait."""
        return len(self._waiting)

    async def enter(self, query_id: str) -> None:
        """Wait for a place. Raises Overloaded at once when nobody else may wait; cancelling gives the turn up."""
        if query_id in self._running:
            return
        if len(self._running) < self._max_running:
            self._running.add(query_id)
            return
        if len(self._waiting) >= self._max_queued:
            raise Overloaded(
                f"{len(self._running)} queries are running and {len(self._waiting)} waiting; try again later"
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[query_id] = turn
        try:
            await turn
        except asyncio.CancelledError:
            # The turn may have come in the same moment: then the place goes to the next.
            self.leave(query_id)
            raise

    def leave(self, query_id: str) -> bool:
        """Give up a place or a wait; whether there was one to give up."""
        turn = self._waiting.pop(query_id, None)
        if turn is not None:
            turn.cancel()
            return True
        if query_id not in self._running:
            return False
        self._running.remove(query_id)
        while self._waiting and len(self._running) < self._max_running:
            next_id, turn = self._waiting.popitem(last=False)
            self._running.add(next_id)
            turn.set_result(None)
        return True

    def check_integrity(self) -> None:
        """Assert that no bound is broken, nobody waits beside a free place, and no query stands in two places."""
        assert len(self._running) <= self._max_running
        assert len(self._waiting) <= self._max_queued
        assert not self._waiting or len(self._running) == self._max_running
        assert not self._running & self._waiting.keys()
        assert not any(turn.done() for turn in self._waiting.values())
