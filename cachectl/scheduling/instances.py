"""The instances that requests run on, with the load of each: they are added, retired, reinstated and removed."""

from __future__ import annotations

from collections.abc import Callable

from cachectl.policies.lookahead import Lookahead
from cachectl.scheduling.queue import CacheAwareQueue
from cachectl.scheduling.request import Request, RequestBook, RequestKind, ScheduledRequest
from cachectl.tree.knowledge_tree import KnowledgeTree
from protocol.errors import ConfigError
from protocol.generation import StepBudget
from protocol.kv import NO_PEERS, Peers


class InstanceState:
    """At most ``max_running`` running requests, each in a slot, and the ``queue`` of those that wait.

    If the engine's ``step`` is known, concurrent prefills fit into one step. ``step_tokens`` are what requests take of
    it, and ``backlog_s`` the seconds that their prefills may take. ``speculations`` come on top, oldest first: their
    slots and shares are still free for requests. Of equal instances, that with the lowest ``rank`` is given a request.
    The request in ``handing_over`` gave its part of the step away shortly
    before its first token. ``prefilling`` are the queries before their first token, by query.
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
        self.prefilling: dict[str, ScheduledRequest] = {}

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

    def fits(self, step_share: int, beside_all: bool = False) -> bool:
        """Whether the step has room for a request's share, or ``beside_all`` for a speculation's.

        A lone one takes what there is.
        """
        taken = self.step_taken() if beside_all else self.step_tokens
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

    def start(self, scheduled: ScheduledRequest) -> list[str]:
        """Give a query that was taken its slot and its part of the step.

        Speculations that take these from queries end for it, the latest first; their ids.
        """
        self.running += 1
        self.step_tokens += scheduled.step_share
        self.prefilling[scheduled.request.query_id] = scheduled
        ended = []
        for query_id, guess in reversed(list(self.speculations.items())):
            crowded = not guess.is_ahead and self.slots_taken() > self._max_running
            if crowded or (self._step is not None and guess.step_share and self.step_taken() > self._step.tokens):
                self.end_speculation(guess)
                ended.append(query_id)
        return ended

    def confirm(self, guess: ScheduledRequest) -> None:
        """Turn a speculation into a query."""
        del self.speculations[guess.request.query_id]
        guess.kind = RequestKind.QUERY
        self.running += 1
        self.step_tokens += guess.step_share
        self.backlog_s += guess.seconds
        if guess.grant is not None and not guess.grant.prefilled:
            self.prefilling[guess.request.query_id] = guess

    def end_speculation(self, guess: ScheduledRequest) -> None:
        """Take a speculation's slot and share back."""
        del self.speculations[guess.request.query_id]
        guess.step_share = 0

    def leave_step(self, scheduled: ScheduledRequest) -> None:
        """End a request's prefill, and take back what it takes of the step. A second call changes nothing."""
        self.prefilling.pop(scheduled.request.query_id, None)
        self._give_back_step(scheduled)

    def hand_over(self, scheduled: ScheduledRequest) -> None:
        """Take back a request's share of the step shortly before its first token, for one other request at a time."""
        self._give_back_step(scheduled)
        self.handing_over = scheduled

    def _give_back_step(self, scheduled: ScheduledRequest) -> None:
        if not scheduled.makes_way:
            self.step_tokens -= scheduled.step_share
        scheduled.step_share = 0
        if self.handing_over is scheduled:
            self.handing_over = None

    def release(self, scheduled: ScheduledRequest) -> None:
        """Take a query off the instance, whether it runs or waits. The backlog is 0 when nothing is left."""
        self.running -= scheduled.grant is not None
        self.backlog_s = self.backlog_s - scheduled.seconds if self.running or self.queue else 0.0


class Instances:
    """States by instance. On each, ``max_running`` requests run and ``max_queued`` wait.

    ``window`` and ``slack`` bound the queues' reordering. ``rank`` orders instances that are equal otherwise. A lost
    instance leaves requests to its caller, who finds other instances for them. Raises ConfigError if nothing could
    ever run.
    """

    def __init__(
        self,
        tree: KnowledgeTree,
        lookahead: Lookahead,
        book: RequestBook,
        max_running: int,
        max_queued: int,
        window: int,
        slack: float,
        step: StepBudget | None,
        rank: Callable[[str], int],
    ) -> None:
        if max_running < 1:
            raise ConfigError(f"an instance works on at least one request, not on {max_running}")
        self._tree = tree
        self._tiers = tree.tiers
        self._lookahead = lookahead
        self._book = book
        self._max_running = max_running
        self._max_queued = max_queued
        self._window = window
        self._slack = slack
        self._step = step
        self._rank = rank
        self.states: dict[str, InstanceState] = {}
        for instance in tree.tiers.gpus:
            self._track(instance)

    @property
    def running(self) -> int:
        """Requests that hold a grant, without speculations."""
        return sum(state.running for state in self.states.values())

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return sum(len(state.queue) for state in self.states.values())

    @property
    def largest_overtake(self) -> int:
        """The greatest number of times that a request was overtaken so far."""
        return max((state.queue.largest_overtake for state in self.states.values()), default=0)

    @property
    def idle(self) -> list[str]:
        """Instances that are given requests and on which nothing runs or waits."""
        return [
            name
            for name, state in self.open().items()
            if not state.running and not state.queue and not state.speculations
        ]

    def present(self) -> set[str]:
        """All instances but retired ones."""
        return self.states.keys() - self._tiers.retired

    def loads(self) -> list[tuple[str, int, int]]:
        """For each instance, how many requests run and how many wait."""
        return [(instance, state.running, len(state.queue)) for instance, state in self.states.items()]

    def serving(self) -> dict[str, InstanceState]:
        """The instances that run requests, retired ones included: all but KV generators."""
        return self._without(self._tiers.kv_generators)

    def open(self) -> dict[str, InstanceState]:
        """The instances that are given requests: all but retired ones and KV generators."""
        tiers = self._tiers
        return self._without(tiers.retired | tiers.kv_generators if tiers.kv_generators else tiers.retired)

    def generating(self) -> dict[str, InstanceState]:
        """The KV generators that are not retired."""
        names = self._tiers.kv_generators - self._tiers.retired
        return {instance: state for instance, state in self.states.items() if instance in names}

    def has_slot(self, instance: str) -> bool:
        """Whether an instance is given requests and has a free slot."""
        return instance not in self._tiers.retired and self.states[instance].has_slot()

    def fits(self, instance: str, step_share: int) -> bool:
        """Whether a request could start on an instance, given the tokens that it takes of each step."""
        return self.has_slot(instance) and self.states[instance].fits(step_share)

    def may_queue(self, instance: str) -> bool:
        """Whether one more request may wait for an instance."""
        return len(self.states[instance].queue) < self._max_queued

    def add(self, instance: str, location: str = "", peers: Peers = NO_PEERS, kv_generator: bool = False) -> None:
        """Add an instance at a known location, which takes requests. A known one is unchanged.

        ``peers`` says where it serves the location's KV, if it does. A ``kv_generator`` takes no requests.
        """
        self._tiers.add_instance(instance, location, peers, kv_generator)
        self._track(instance)

    def retire(self, instance: str) -> None:
        """Give an instance no more requests. Its running requests continue. Raises UnknownInstance."""
        self._tiers.gpu(instance)
        self._tiers.retired.add(instance)

    def reinstate(self, instance: str) -> None:
        """Give requests again to a retired instance; ``start_next`` has its turn. Raises UnknownInstance."""
        self._tiers.gpu(instance)
        self._tiers.retired.discard(instance)

    def take_stranded(self) -> list[Request]:
        """Remove the requests that wait for retired instances while there is another, in order of arrival.

        The caller admits them again.
        """
        retired = self._tiers.retired
        if not retired or not self.open():
            return []
        waiting = [each for each in self._book.requests.values() if each.grant is None and each.instance in retired]
        for scheduled in waiting:
            query_id, state = scheduled.request.query_id, self.states[scheduled.instance]
            state.queue.remove(query_id)
            self._book.reconsider(self._lookahead.leave(query_id))
            del self._book.requests[query_id]
            state.release(scheduled)
        return [scheduled.request for scheduled in waiting]

    def ended(self) -> list[str]:
        """Retired instances without any request; none while requests have no other instance to wait for."""
        if not self.open():
            return []
        busy = {scheduled.instance for scheduled in self._book.requests.values()}
        return sorted(self._tiers.retired - busy)

    def remove(self, instance: str) -> list[Request]:
        """Remove a lost instance; the requests that ran on it or waited for it. The caller admits them again.

        Raises UnknownInstance.
        """
        self._tree.remove_instance(instance)
        lost = [scheduled for scheduled in self._book.requests.values() if scheduled.instance == instance]
        for scheduled in lost:
            del self._book.requests[scheduled.request.query_id]
            if scheduled.grant is None:
                self._book.reconsider(self._lookahead.leave(scheduled.request.query_id))
        del self.states[instance]
        return [scheduled.request for scheduled in lost]

    def _track(self, instance: str) -> None:
        """Track an instance. A known one keeps its state."""
        if instance not in self.states:
            queue = CacheAwareQueue(self._max_queued, self._window, self._book.work, self._slack)
            self.states[instance] = InstanceState(queue, self._max_running, self._step, self._rank(instance))

    def _without(self, excluded: set[str]) -> dict[str, InstanceState]:
        if not excluded:
            return self.states
        return {instance: state for instance, state in self.states.items() if instance not in excluded}
