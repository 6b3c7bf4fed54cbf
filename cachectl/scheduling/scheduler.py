"""The scheduler: admits requests to instances and to the knowledge tree, in cache-aware order.

    admit ─► route to an instance ─► wait in its cache-aware queue ─► Grant ─► prefilled ─► complete

The first token and the end of a request both may be another request's turn. Synchronous and without a clock: the live
controller and the simulator drive the same object.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from cachectl.branches import NO_BRANCHES, KeptBranches
from cachectl.policies.lookahead import Lookahead
from cachectl.scheduling.instances import Instances
from cachectl.scheduling.queue import Work
from cachectl.scheduling.request import Request, RequestBook, RequestKind, ScheduledRequest
from cachectl.scheduling.routing import Router
from cachectl.scheduling.speculation import SpeculativeSlots
from cachectl.tiers.pending_moves import MoveBatch
from cachectl.tree.grant import Grant
from cachectl.tree.knowledge_tree import KnowledgeTree
from protocol.errors import UnknownPlan
from protocol.generation import StepBudget
from protocol.tiers import Tier

_HANDOVER_STEPS = 2


class Scheduler:
    """Runs at most ``max_running`` requests on each instance, and lets at most ``max_queued`` wait for it.

    Waiting requests go by OrderPriority (RAGCache, section 5.2), within the queue's bounds ``window`` and ``slack``.
    If the engine's ``step`` is known, concurrent prefills fit into one step: more of them would wait inside of the
    engine, in the engine's own order. ``speculative`` prefills fill what is left of the step. Schedulers that share
    instances and know nothing of each other's load need another ``rank`` of them each. ``branches`` are what the
    instances keep of dependency trees. Raises ConfigError if nothing could ever run.
    """

    def __init__(
        self,
        tree: KnowledgeTree,
        lookahead: Lookahead,
        max_running: int,
        max_queued: int,
        window: int,
        step: StepBudget | None = None,
        slack: float = math.inf,
        rank: Callable[[str], int] = lambda _instance: 0,
        branches: KeptBranches = NO_BRANCHES,
    ) -> None:
        self.tree = tree
        self._lookahead = lookahead
        self.branches = branches
        self.book = RequestBook(tree, self.branches)
        self.instances = Instances(tree, lookahead, self.book, max_running, max_queued, window, slack, step, rank)
        self._step = step
        self._router = Router(tree, lookahead, self.book, self.instances, step)
        self.speculative = SpeculativeSlots(tree, self.book, self.instances, self._router, self._start)

    def admit(self, request: Request, now: float, among: Collection[str] | None = None) -> Grant | None:
        """Admit a request, to one of the instances ``among`` if any are named; its grant, or None if it has to wait.

        Raises InvalidRequest for a known query and for a document that the tree has with another length, Overloaded if
        no more may wait, Unavailable if there is no instance, and EngineDied if the request avoids all that there are.
        Then nothing has changed. If all instances are retired, the request waits for another to come.
        """
        scheduled = self.book.new(request, RequestKind.QUERY)
        prefix = self._router.route(scheduled, now, among)
        state = self.instances.states[scheduled.instance]
        fits = self.instances.fits(scheduled.instance, scheduled.step_share)
        starts = fits and not state.queue
        if not starts:
            work = Work(scheduled.tokens - prefix.computed, prefix.computed, prefix.seconds)
            state.queue.push(request.query_id, work)
            # Dictionaries keep the order. A donor may be a node of the request's own path.
            branch_keys = [branch.key for branch in request.branches]
            needed = dict.fromkeys([*scheduled.keys, *prefix.donor_keys, *branch_keys])
            self._lookahead.enter(request.query_id, tuple(needed))
        self.book.requests[request.query_id] = scheduled
        state.backlog_s += scheduled.seconds
        # The others may wait for more of the step than is free. A request that fits goes first if it has priority.
        if fits and not starts and state.queue.pop(request.query_id.__eq__) is not None:
            self._lookahead.leave(request.query_id)
            starts = True
        if not starts:
            return None
        scheduled.prefix = prefix
        return self._start(scheduled, now)

    def prefilled(self, query_id: str, now: float, lost: Collection[tuple[bytes, Tier]] = ()) -> list[Grant]:
        """Note a running request's first token: what it computed serves others from now on.

        Returns the grants of requests that start now. ``lost`` is as ``GrantBook.lose`` takes it. Raises UnknownPlan
        for a query that does not run; then nothing has changed.
        """
        scheduled = self.book.running(query_id)
        assert scheduled.grant is not None
        self._reprioritise_for(self.tree.grants.prefilled(scheduled.grant, lost))
        request = scheduled.request
        if request.branches:
            self._reprioritise_for_branches(scheduled.instance, request.namespace)
        self.instances.states[scheduled.instance].leave_step(scheduled)
        return self.start_next(scheduled.instance, now)

    def complete(
        self,
        query_id: str,
        now: float,
        kept: bool,
        lost: Collection[tuple[bytes, Tier]] = (),
        unwritten: Collection[tuple[bytes, Tier]] | None = None,
    ) -> list[Grant]:
        """End a request, running or waiting; the grants of requests that start now.

        ``kept``, ``lost`` and ``unwritten`` are as ``GrantBook.complete`` takes them; a waiting request has none of
        them. Raises UnknownPlan for an unknown query; then nothing has changed.
        """
        scheduled = self.book.requests.get(query_id)
        if scheduled is None:
            raise UnknownPlan(f"query {query_id!r} holds no plan and waits for none")
        state = self.instances.states[scheduled.instance]
        if scheduled.grant is None:
            state.queue.remove(query_id)
            self.book.reconsider(self._lookahead.leave(query_id))
        else:
            for key in self.tree.grants.complete(scheduled.grant, kept, lost, unwritten):
                self._reprioritise_for(key)
            state.leave_step(scheduled)
            if not kept:
                self.branches.take_back(scheduled.instance, scheduled.request.branches)
        del self.book.requests[query_id]
        if scheduled.makes_way:
            state.speculations.pop(query_id, None)
            # No query waits for a speculation to end, but one waits for its prefetch.
            return self.start_next(scheduled.instance, now) if scheduled.is_ahead else []
        state.release(scheduled)
        return self.start_next(scheduled.instance, now)

    def start_next(self, instance: str, now: float) -> list[Grant]:
        """Start the requests whose turn it is on an instance; their grants."""
        state = self.instances.states[instance]
        grants: list[Grant] = []
        while self.instances.has_slot(instance):
            turn = state.queue.pop(self._fits_now)
            if turn is None:
                break
            self._lookahead.leave(turn.query_id)
            grant = self._start(self.book.requests[turn.query_id], now)
            grant.overtaken = turn.overtaken
            grants.append(grant)
        return grants

    def deliver(self, instance: str) -> MoveBatch:
        """Take an instance's pending moves, for a delivery outside of plans. Raises UnknownInstance."""
        batch = MoveBatch(instance)
        self.tree.tiers.take_moves(batch)
        self.tree.tiers.under_way.begin(batch)
        self._note_writes(batch)
        return batch

    def delivered(self, batch: MoveBatch, unwritten: Collection[tuple[bytes, Tier]]) -> None:
        """Note that an instance has carried out moves outside of any plan, but for the copies ``unwritten``."""
        for key in self.tree.tiers.confirm(batch, unwritten, self.tree.grants.tick):
            self._reprioritise_for(key)

    def handover_in(self, query_id: str) -> float | None:
        """Seconds from the start of a prefill until its part of the step may be handed over; None if it may not.

        That is two steps of the engine before the prefill's expected end: one for the variance of prefills, one in
        which the next request arrives. For a short prefill it is half of the prefill.
        """
        scheduled = self.book.requests.get(query_id)
        if scheduled is None or scheduled.grant is None or not self._may_hand_over(scheduled):
            return None
        computed = scheduled.grant.computed_tokens
        seconds = self.tree.lookup.prefill_seconds(scheduled.tokens - computed, computed)
        share = scheduled.step_share
        step_s = self.tree.lookup.prefill_seconds(scheduled.tokens - share, share)
        return seconds - min(_HANDOVER_STEPS * step_s, seconds / 2)

    def hand_over(self, query_id: str, now: float) -> list[Grant]:
        """Hand a running request's part of the step to the next one, as its first token is due; the grants that start.

        An instance hands over one request's part at a time, so the others keep waiting in their order.
        """
        scheduled = self.book.requests.get(query_id)
        if scheduled is None or not self._may_hand_over(scheduled):
            return []
        self.instances.states[scheduled.instance].hand_over(scheduled)
        return self.start_next(scheduled.instance, now)

    def stalled(self, query_id: str, now: float) -> list[Grant]:
        """Stop a running request from blocking others, as its first token is overdue; the grants that start.

        Raises UnknownPlan for a query that does not run.
        """
        scheduled = self.book.running(query_id)
        state = self.instances.states[scheduled.instance]
        state.leave_step(scheduled)
        if scheduled.is_ahead and query_id in state.speculations:
            state.end_speculation(scheduled)
        return self.start_next(scheduled.instance, now)

    def is_cached(self, request: Request) -> bool:
        """Whether some instance has all of a request's documents."""
        return any(
            len(self.tree.lookup.hits(request.namespace, request.documents, instance)) == len(request.documents)
            for instance in self.instances.open()
        )

    def remove_location(self, name: str) -> None:
        """Forget what a location held that has no instance any more."""
        self.tree.remove_location(name)
        self.reprioritise()

    def reprioritise(self) -> None:
        """Reprioritise all waiting requests, after the tree has changed as a whole."""
        for state in self.instances.states.values():
            for query_id in state.queue:
                state.queue.reprioritise(query_id, self.book.work(query_id))

    def _start(self, scheduled: ScheduledRequest, now: float) -> Grant:
        """Admit a request to the tree; speculations on its instance make way for it."""
        request = scheduled.request
        scheduled.began = now
        ends = [] if scheduled.makes_way else self.instances.states[scheduled.instance].start(scheduled)
        for query_id in ends:
            guess = self.book.requests[query_id]
            assert guess.grant is not None, "a speculation waits"
            self.tree.grants.make_way(guess.grant)
        prefix, scheduled.prefix = scheduled.prefix, None
        grant = scheduled.grant = self.tree.grants.admit(
            request.query_id,
            request.namespace,
            request.documents,
            scheduled.keys,
            self.book.question_tokens(request, scheduled.instance),
            scheduled.instance,
            now,
            request.pinned,
            prefix,
            request.recompute_share,
            scheduled.kind is RequestKind.LOAD,
        )
        grant.ends += ends
        if request.branches:
            behind = request.question_tokens - sum([branch.tokens for branch in request.branches])
            grant.dropped_branches = self.branches.keep(scheduled.instance, request.namespace, request.branches, behind)
        self._note_writes(grant)
        return grant

    def _fits_now(self, query_id: str) -> bool:
        """Whether a waiting request fits into the step as the tree is now, and no prefetch runs for it."""
        scheduled = self.book.requests[query_id]
        state = self.instances.states[scheduled.instance]
        if scheduled.prefetched_by in state.speculations:
            return False
        if self._step is None:
            return True
        prefix = self.book.cached_prefix(scheduled, scheduled.instance)
        scheduled.step_share = self._router.step_share(prefix)
        if not state.fits(scheduled.step_share):
            return False
        # It starts at once, so this lookup serves for its grant too.
        scheduled.prefix = prefix
        return True

    def _note_writes(self, batch: MoveBatch) -> None:
        """Reprioritise the requests that find a copy now because their instance has begun to write it."""
        if len(self.instances.states) > 1 and self._lookahead:
            for copy in batch.writes:
                self._reprioritise_for(copy.node.key)

    def _reprioritise_for(self, uppermost: bytes | None) -> None:
        """Reprioritise the requests that need a node with a new copy, by its key.

        A request that needs any node of a path needs the path's uppermost node.
        """
        if uppermost is not None:
            for query_id in self._lookahead.waiting_for(uppermost):
                queue = self.instances.states[self.book.requests[query_id].instance].queue
                queue.reprioritise(query_id, self.book.work(query_id))

    def _reprioritise_for_branches(self, instance: str, namespace: str) -> None:
        """Reprioritise the requests of a namespace that may find branches which their instance has just computed."""
        queue = self.instances.states[instance].queue
        for query_id in queue:
            request = self.book.requests[query_id].request
            if request.branches and request.namespace == namespace:
                queue.reprioritise(query_id, self.book.work(query_id))

    def _may_hand_over(self, scheduled: ScheduledRequest) -> bool:
        """Whether a request waits for what another takes of the step, and none was let in early so far."""
        if scheduled.grant is None or scheduled.makes_way or not scheduled.step_share:
            return False
        state = self.instances.states[scheduled.instance]
        return self.instances.has_slot(scheduled.instance) and bool(state.queue) and state.handing_over is None
