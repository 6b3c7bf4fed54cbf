"""The state of one instance: its running requests, its queue and its speculations."""

from __future__ import annotations

from cachectl.scheduling.queue import CacheAwareQueue
from cachectl.scheduling.request import RequestKind, ScheduledRequest
from protocol.generation import StepBudget


class InstanceState:
    """At most ``max_running`` running requests, each in a slot, and the ``queue`` of those that wait.

    If the engine's ``step`` is known, concurrent prefills fit into one step. ``step_tokens`` are what requests take of
    it, and ``backlog_s`` the seconds that their prefills may take. ``speculations`` come on top, oldest first: their
    slots and shares are still free for requests. Of equal instances, that with the lowest ``rank`` is given a request.
    The request in ``handing_over`` gave its part of the step away shortly
    before its first token.
    """

    def __init__(self, queue: CacheAwareQueue, max_running: int, step: StepBudget | None, rank: int = 0) -> None:
        self.queue = queue
        self.rank = rank
        self._max_running = max_running
        self._step = step
        self.running = 0
        self.step_tokens = 0
        self.speculations: dict[str, ScheduledRequest] = {}
        self.backlog_s = 0.0
        self.handing_over: ScheduledRequest | None = None

    def step_taken(self, besides: str | None = None) -> int:
        """Tokens of the step that are taken, without the speculation ``besides``."""
        shares = [guess.step_share for query_id, guess in self.speculations.items() if query_id != besides]
        return self.step_tokens + sum(shares)

    def slots_taken(self, besides: str | None = None) -> int:
        """Slots that are taken, without the speculation ``besides``."""
        guesses = [
            query_id for query_id, guess in self.speculations.items() if query_id != besides and not guess.is_ahead
        ]
        return self.running + len(guesses)

    def has_slot(self) -> bool:
        """Whether a request could get a slot."""
        return self.running < self._max_running

    def fits(self, step_share: int) -> bool:
        """Whether the step has room for a request's share. A lone request takes what there is."""
        return self._step is None or not self.step_tokens or self.step_tokens + step_share <= self._step.tokens

    def fits_beside_all(self, step_share: int) -> bool:
        """Whether the step has room for a speculation's share beside everything. A lone one takes what there is."""
        taken = self.step_taken()
        return self._step is None or not taken or taken + step_share <= self._step.tokens

    def has_room(self, besides: str | None = None) -> bool:
        """Whether a speculation could start if the speculation ``besides`` ended."""
        if self.queue or self.slots_taken(besides) >= self._max_running:
            return False
        return self._step is None or self.step_taken(besides) < self._step.tokens

    def prefetches(self) -> bool:
        """Whether a prefetch runs."""
        return any(guess.is_ahead for guess in self.speculations.values())

    def has_room_for_prefetch(self) -> bool:
        """Whether the step has a whole prompt's part free, and no prefetch runs."""
        if self.prefetches():
            return False
        return self._step is None or self.step_taken() + self._step.prompt_tokens <= self._step.tokens

    def take(self, scheduled: ScheduledRequest) -> None:
        """Count a query that is given to the instance."""
        self.backlog_s += scheduled.seconds

    def start(self, scheduled: ScheduledRequest) -> list[str]:
        """Give a query that was taken its slot and its part of the step; the ids of what ends for it."""
        self.running += 1
        self.step_tokens += scheduled.step_share
        return self._make_way()

    def confirm(self, guess: ScheduledRequest) -> None:
        """Turn a speculation into a query."""
        del self.speculations[guess.request.query_id]
        guess.kind = RequestKind.QUERY
        self.running += 1
        self.step_tokens += guess.step_share
        self.take(guess)

    def _make_way(self) -> list[str]:
        """End speculations, the latest first, that take a slot or a part of the step from queries; their ids."""
        ended = []
        for query_id, guess in reversed(list(self.speculations.items())):
            crowded = not guess.is_ahead and self.slots_taken() > self._max_running
            if crowded or (self._step is not None and guess.step_share and self.step_taken() > self._step.tokens):
                self.end_speculation(guess)
                ended.append(query_id)
        return ended

    def end_speculation(self, guess: ScheduledRequest) -> None:
        """Take a speculation's slot and share back."""
        del self.speculations[guess.request.query_id]
        guess.step_share = 0

    def leave_step(self, scheduled: ScheduledRequest) -> None:
        """Take back what a request's prefill takes of the step. A second call changes nothing."""
        if not scheduled.makes_way:
            self.step_tokens -= scheduled.step_share
        scheduled.step_share = 0
        if self.handing_over is scheduled:
            self.handing_over = None

    def hand_over(self, scheduled: ScheduledRequest) -> None:
        """Take back a request's share of the step shortly before its first token, for one other request at a time."""
        self.leave_step(scheduled)
        self.handing_over = scheduled

    def release(self, scheduled: ScheduledRequest) -> None:
        """Take a query off the instance, whether it runs or waits. The backlog is 0 when nothing is left."""
        self.running -= scheduled.grant is not None
        self.backlog_s = self.backlog_s - scheduled.seconds if self.running or self.queue else 0.0
