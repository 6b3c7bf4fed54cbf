"""The next prefill in the engine's queue when the one that fills its steps has its first token, and not after that."""

import asyncio
from collections.abc import Callable

from cachectl.scheduling.scheduler import Scheduler
from cachectl.tree.grant import Grant


class Handover:
    """Has the scheduler hand steps over when a prefill is nearly done, by what it should take.

    The news of a first token comes here through the gateway, and the next plan goes that way back: some milliseconds,
    and the engine meanwhile begins a step in which nothing is prefilled. Who comes too soon costs little, for he takes
    what is left of the steps; who comes too late, no more than before. ``give`` hears of those whose turn it makes.
    Belongs to one event loop.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float], give: Callable[[Grant], None]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._give = give
        # Since when, in the event loop's time, each prefill has its full part of the steps.
        self._since: dict[str, float] = {}
        # Who came in ahead of whose first token: until that comes they have what is left of the steps.
        self._behind: dict[str, list[str]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begun(self, query_id: str) -> None:
        """Hear that a prefill has begun."""
        self._since[query_id] = asyncio.get_running_loop().time()
        self.look()

    def over(self, query_id: str) -> None:
        """Hear that a prefill has ended, in whatever way."""
        if self._since.pop(query_id, None) is None:
            return
        now = asyncio.get_running_loop().time()
        self._since |= {behind: now for behind in self._behind.pop(query_id, ()) if behind in self._since}
        self.look()

    def look(self) -> None:
        """Find out anew which prefill is the next to be nearly done: who waits has changed, or what runs."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = [
            (since + in_s, query_id)
            for query_id, since in self._since.items()
            if (in_s := self._scheduler.handover_in(query_id)) is not None
        ]
        if due:
            at, query_id = min(due)
            self._timer = asyncio.get_running_loop().call_at(at, self._due, query_id)

    def check_integrity(self, prefilling: set[str]) -> None:
        """Assert that this knows of nothing but what is ``prefilling``."""
        assert self._since.keys() <= prefilling
        assert self._behind.keys() <= self._since.keys()

    def _due(self, query_id: str) -> None:
        granted = self._scheduler.hand_over(query_id, self._clock())
        if granted:
            self._behind[query_id] = [grant.query_id for grant in granted]
        for grant in granted:
            self._give(grant)
        self.look()
