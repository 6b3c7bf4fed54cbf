"""The dispatcher: chooses an instance for each request, and starts its prefill."""

from __future__ import annotations

from collections.abc import Collection
from heapq import nsmallest

from cachectl.branches.kept_branches import KeptBranches
from cachectl.policies.lookahead import Lookahead
from cachectl.scheduling.instance_state import InstanceState
from cachectl.scheduling.instances import Instances
from cachectl.scheduling.request import RequestKind, ScheduledRequest
from cachectl.scheduling.request_book import RequestBook
from cachectl.scheduling.routing import Candidate, route
from cachectl.tiers.move_batch import MoveBatch
from cachectl.tree.grant import Grant
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.prefix_lookup import CachedPrefix
from protocol.errors import EngineDied, Overloaded
from protocol.generation import StepBudget

_FEW = 16
"""Up to this number, all instances are looked at."""
_LEAST_BUSY = 4
"""How many of the instances are looked at that have nothing of a request."""


class Dispatcher:
    """Routes requests to instances, and admits them to the tree when their turn comes.

    ``step`` is what one step of an engine computes; None if steps are unbounded.
    """

    def __init__(
        self,
        tree: KnowledgeTree,
        branches: KeptBranches,
        lookahead: Lookahead,
        book: RequestBook,
        instances: Instances,
        step: StepBudget | None,
    ) -> None:
        self._tree = tree
        self._branches = branches
        self._lookahead = lookahead
        self._book = book
        self._instances = instances
        self._step = step

    def route(self, scheduled: ScheduledRequest, among: Collection[str] | None) -> CachedPrefix:
        """Choose the instance that has a request's first token soonest; what the request finds there.

        If all instances are retired, it waits for one of them. Raises Overloaded if no more requests may wait,
        Unavailable if there is no instance, and EngineDied if the request avoids all that there are.
        """
        instances = self._instances
        states = instances.open() or instances.serving()
        if scheduled.request.avoid:
            states = {name: state for name, state in states.items() if name not in scheduled.request.avoid}
            if not states:
                raise EngineDied("there is no other instance of the generator")
        looked_at = self._worth_a_look(scheduled, states) if among is None else states
        prefixes = self._prefixes(scheduled, looked_at, among)
        if not prefixes and len(looked_at) < len(states):
            prefixes = self._prefixes(scheduled, states, among)
        if states and not prefixes:
            raise Overloaded(f"{instances.running} queries are running and {instances.queued} waiting; try again later")
        chosen = route(
            Candidate(name, states[name].backlog_s, prefix.seconds, states[name].rank)
            for name, prefix in prefixes.items()
        )
        scheduled.instance, scheduled.seconds = chosen.instance, chosen.prefill_s
        prefix = prefixes[chosen.instance]
        scheduled.step_share = self.step_share(prefix)
        return prefix

    def _prefixes(
        self, scheduled: ScheduledRequest, states: dict[str, InstanceState], among: Collection[str] | None
    ) -> dict[str, CachedPrefix]:
        """What a request finds on each instance that could take it."""
        instances = self._instances
        prefixes: dict[str, CachedPrefix] = {}
        for name, state in states.items():
            may_queue = instances.may_queue(name)
            if (among is None or name in among) and (may_queue or not state.queue):
                prefix = self._book.cached_prefix(scheduled, name)
                if may_queue or instances.fits(name, self.step_share(prefix)):
                    prefixes[name] = prefix
        return prefixes

    def _worth_a_look(self, scheduled: ScheduledRequest, states: dict[str, InstanceState]) -> dict[str, InstanceState]:
        """The instances to look a request up for: of many, those that have its first document, and the least busy ones.

        An instance without the first document has nothing behind it either, so only its backlog makes a difference.
        What it can read elsewhere costs about the same for all. A document that may be composed counts wherever it
        stands, so all instances are looked at then.
        """
        request = scheduled.request
        if len(states) <= _FEW or request.recompute_share is not None:
            return states
        places = self._tree.lookup.places_of(request.namespace, request.documents, request.pinned)
        chosen: dict[str, InstanceState] = {}
        others: list[tuple[float, int, int, str]] = []
        for number, (name, state) in enumerate(states.items()):
            if places and not places.isdisjoint(self._tree.tiers.reach(name)):
                chosen[name] = state
            elif self._instances.may_queue(name) or not state.queue:
                others.append((state.backlog_s, state.rank, number, name))
        for _, _, _, name in nsmallest(_LEAST_BUSY, others):
            chosen[name] = states[name]
        return chosen

    def step_share(self, prefix: CachedPrefix) -> int:
        """Tokens that a prefill takes of each step of its engine; 0 if steps are unbounded.

        A prefill that loads for longer than it computes takes none: the engine would idle meanwhile.
        """
        if self._step is None or prefix.loading.seconds > prefix.seconds - prefix.moving_s:
            return 0
        return min(prefix.computed, self._step.prompt_tokens)

    def start(self, scheduled: ScheduledRequest, now: float) -> Grant:
        """Admit a request to the tree; speculations on its instance make way for it."""
        request = scheduled.request
        ends = [] if scheduled.makes_way else self._make_way(scheduled)
        prefix, scheduled.prefix = scheduled.prefix, None
        grant = scheduled.grant = self._tree.grants.admit(
            request.query_id,
            request.namespace,
            request.documents,
            scheduled.keys,
            self._book.question_tokens(request, scheduled.instance),
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
            grant.dropped_branches = self._branches.keep(
                scheduled.instance, request.namespace, request.branches, behind
            )
        self.note_writes(grant)
        return grant

    def _make_way(self, scheduled: ScheduledRequest) -> list[str]:
        """Give a request its slot and its part of the step; the speculations that end for it."""
        ends = self._instances.states[scheduled.instance].start(scheduled)
        for query_id in ends:
            guess = self._book.requests[query_id]
            assert guess.grant is not None, "a speculation waits"
            self._tree.grants.make_way(guess.grant)
        return ends

    def note_writes(self, batch: MoveBatch) -> None:
        """Reprioritise the requests that find a copy now because their instance has begun to write it."""
        if len(self._instances.states) > 1 and self._lookahead:
            for copy in batch.writes:
                self.reprioritise_for(copy.node.key)

    def start_next(self, instance: str, now: float) -> list[Grant]:
        """Start the requests whose turn it is on an instance; their grants."""
        state = self._instances.states[instance]
        grants: list[Grant] = []
        while self._instances.has_slot(instance):
            turn = state.queue.pop(self._fits_now)
            if turn is None:
                break
            self._lookahead.leave(turn.query_id)
            grant = self.start(self._book.requests[turn.query_id], now)
            grant.overtaken = turn.overtaken
            grants.append(grant)
        return grants

    def reprioritise_for(self, uppermost: bytes | None) -> None:
        """Reprioritise the requests that need a node with a new copy, by its key.

        A request that needs any node of a path needs the path's uppermost node.
        """
        if uppermost is not None:
            for query_id in self._lookahead.waiting_for(uppermost):
                queue = self._instances.states[self._book.requests[query_id].instance].queue
                queue.reprioritise(query_id, self._book.work(query_id))

    def reprioritise_for_branches(self, instance: str, namespace: str) -> None:
        """Reprioritise the requests of a namespace that may find branches which their instance has just computed."""
        queue = self._instances.states[instance].queue
        for query_id in queue:
            request = self._book.requests[query_id].request
            if request.branches and request.namespace == namespace:
                queue.reprioritise(query_id, self._book.work(query_id))

    def _fits_now(self, query_id: str) -> bool:
        """Whether a waiting request fits into the step as the tree is now, and no prefetch runs for it."""
        scheduled = self._book.requests[query_id]
        state = self._instances.states[scheduled.instance]
        if scheduled.prefetched_by in state.speculations:
            return False
        if self._step is None:
            return True
        prefix = self._book.cached_prefix(scheduled, scheduled.instance)
        scheduled.step_share = self.step_share(prefix)
        if not state.fits(scheduled.step_share):
            return False
        # It starts at once, so this lookup serves for its grant too.
        scheduled.prefix = prefix
        return True
