"""Starts the next prefill shortly before the running one ends, so that the engine has no step without a prefill."""

import asyncio
from collections.abc import Callable, Sequence

from cachectl.scheduling.scheduler import Scheduler
from cachectl.tree.grant import Grant


class Handover:
    """Has the scheduler hand a prefill's part of the engine's steps over when that prefill is about to end.

    The first token is reported through the gateway, and the next plan travels back the same way. That takes some
    milliseconds, in which the engine would begin a step without a prefill. So the handover happens when the cost model
    expects the prefill to end. A prefill that starts too early costs little, because it only takes what is left of the
    steps. One that starts too late costs no more than without a handover.

    ``start`` is called with the grants whose turn a handover makes. Belongs to one event loop.
    """

    def __init__(
        self, scheduler: Scheduler, clock: Callable[[], float], start: Callable[[Sequence[Grant]], None]
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._start = start
        # When each prefill got its full part of the steps, in the event loop's time.
        self._since: dict[str, float] = {}
        # The prefills that started in a handover, by the prefill that they wait for to get their full part.
        self._behind: dict[str, list[str]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def prefill_started(self, query_id: str) -> None:
        """Record that a prefill has started."""
        self._since[query_id] = asyncio.get_running_loop().time()
        self.schedule()

    def prefill_ended(self, query_id: str) -> None:
        """Record that a prefill has ended, with or without a first token."""
        if self._since.pop(query_id, None) is None:
            return
        now = asyncio.get_running_loop().time()
        self._since |= {behind: now for behind in self._behind.pop(query_id, ()) if behind in self._since}
        self.schedule()

    def schedule(self) -> None:
        """Set the timer for the next handover. Call this when the queue or the running prefills have changed."""
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
            self._timer = asyncio.get_running_loop().call_at(at, self._hand_over, query_id)

    def _hand_over(self, query_id: str) -> None:
        granted = self._scheduler.hand_over(query_id, self._clock())
        if granted:
            self._behind[query_id] = [grant.query_id for grant in granted]
        self._start(granted)
        self.schedule()
