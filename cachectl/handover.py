"""The next prefill in the engine's queue when the one that fills its steps has its first token, and not after that."""

import asyncio
from collections.abc import Callable

from cachectl.grant import Grant
from cachectl.scheduler import Scheduler


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
        # Of each prefill, those that are over by time included.
        self._timers: dict[str, asyncio.TimerHandle] = {}
        # Who came in ahead of whose first token: until that comes they have what is left of the steps.
        self._behind: dict[str, list[str]] = {}

    def begun(self, query_id: str) -> None:
        """Hear that a prefill has begun, or has its full part of the steps from now on."""
        due_s = self._scheduler.handover_in(query_id)
        if due_s is not None:
            self._timers[query_id] = asyncio.get_running_loop().call_later(due_s, self._due, query_id)

    def over(self, query_id: str) -> None:
        """Hear that a prefill has ended, in whatever way."""
        timer = self._timers.pop(query_id, None)
        if timer is not None:
            timer.cancel()
        for behind in self._behind.pop(query_id, ()):
            if behind in self._timers:
                self._timers[behind].cancel()
                self.begun(behind)

    def _due(self, query_id: str) -> None:
        granted = self._scheduler.hand_over(query_id, self._clock())
        self._behind[query_id] = [grant.query_id for grant in granted]
        for grant in granted:
            self._give(grant)
