"""Routing: what is cached or being computed against the load, all in seconds."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

from cachectl.policies.lookahead import Lookahead
from cachectl.scheduling.instances import Instances, InstanceState
from cachectl.scheduling.request import RequestBook, ScheduledRequest
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.prefix_lookup import CachedPrefix
from protocol.errors import EngineDied, Overloaded, Unavailable
from protocol.generation import StepBudget

_FEW = 16
"""Up to this number, all instances are looked at."""
_LEAST_BUSY = 4
"""How many of the instances are looked at that have nothing of a request."""
_AHEAD = 16
"""How many of the waiting requests that need a request's first document are looked at."""


class Candidate(NamedTuple):
    """An instance that could take a request.

    ``backlog_s`` are the prefill seconds of the requests that it has taken on. ``prefill_s`` are the request's own
    there, loads included: the more of its documents the instance finds, the fewer. Of equal instances, that with the
    lowest ``rank`` is chosen.
    """

    instance: str
    backlog_s: float
    prefill_s: float
    rank: int = 0


def best(candidates: Iterable[Candidate]) -> Candidate:
    """The candidate with the request's first token soonest; of equals that with the lowest rank, or else the first.

    Raises Unavailable if there is no candidate.
    """
    chosen = min(candidates, key=lambda each: (each.backlog_s + each.prefill_s, each.rank), default=None)
    if chosen is None:
        raise Unavailable("no instance of the generator is there")
    return chosen


class Router:
    """Chooses an instance for each request. ``step`` is what one step of an engine computes; None if unbounded."""

    def __init__(
        self,
        tree: KnowledgeTree,
        lookahead: Lookahead,
        book: RequestBook,
        instances: Instances,
        step: StepBudget | None,
    ) -> None:
        self._tree = tree
        self._lookahead = lookahead
        self._book = book
        self._instances = instances
        self._step = step

    def route(self, scheduled: ScheduledRequest, now: float, among: Collection[str] | None) -> CachedPrefix:
        """Choose the instance that has a request's first token soonest; what the request finds there.

        A document that an instance computes already is waited for there, or computed again elsewhere if that is sooner.

        If all instances are retired, it waits for one. Raises Overloaded if no more requests may wait,
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
        under_way = self._under_way(scheduled, prefixes)
        chosen = best(
            [
                self._candidate(scheduled, name, prefix, under_way.get(name, ()), now)
                for name, prefix in prefixes.items()
            ]
        )
        scheduled.instance, scheduled.seconds = chosen.instance, chosen.prefill_s
        prefix = prefixes[chosen.instance]
        scheduled.step_share = self.step_share(prefix)
        return prefix

    def step_share(self, prefix: CachedPrefix) -> int:
        """Tokens that a prefill takes of each step of its engine; 0 if steps are unbounded.

        A prefill that loads for longer than it computes takes none: the engine would idle meanwhile.
        """
        if self._step is None or prefix.loading.seconds > prefix.seconds - prefix.moving_s:
            return 0
        return min(prefix.computed, self._step.prompt_tokens)

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

    def _under_way(self, scheduled: ScheduledRequest, prefixes: Collection[str]) -> dict[str, list[ScheduledRequest]]:
        """By instance, the requests that begin like a new one, and whose prefills go on or wait there."""
        found: dict[str, list[ScheduledRequest]] = {}
        front = scheduled.request.pinned
        if len(prefixes) < 2 or front >= len(scheduled.keys):
            return found
        first = scheduled.keys[front]
        for name in prefixes:
            computing = self._instances.states[name].prefilling.values()
            alike = [each for each in computing if front < len(each.keys) and each.keys[front] == first]
            if alike:
                found[name] = alike
        for query_id in islice(self._lookahead.waiting_for(first), _AHEAD):
            waiting = self._book.requests[query_id]
            if waiting.instance in prefixes:
                found.setdefault(waiting.instance, []).append(waiting)
        return found

    def _candidate(
        self,
        scheduled: ScheduledRequest,
        name: str,
        prefix: CachedPrefix,
        under_way: Collection[ScheduledRequest],
        now: float,
    ) -> Candidate:
        """An instance that could take a request, which may find more there once others ``under_way`` are prefilled."""
        state = self._instances.states[name]
        soonest = Candidate(name, state.backlog_s, prefix.seconds, state.rank)
        for other in under_way:
            shared = scheduled.shares(other)
            documents = scheduled.request.documents[prefix.loading.documents : shared]
            if documents:
                seconds = self._tree.lookup.seconds_behind(prefix, sum([document.tokens for document in documents]))
                # The backlog counts all of the other's prefill, of which this part is over.
                over_s = min(now - other.began, other.seconds) if other.grant is not None else 0.0
                soonest = best([soonest, Candidate(name, state.backlog_s - over_s, seconds, state.rank)])
        return soonest

    def _worth_a_look(self, scheduled: ScheduledRequest, states: dict[str, InstanceState]) -> dict[str, InstanceState]:
        """The instances to look a request up for: of many, those that have its first document, and the least busy ones.

        An instance without the first document has nothing after it either, so only its backlog makes a difference.
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
