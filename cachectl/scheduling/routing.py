"""Routing: the longest cached prefix against the load, both in seconds."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from heapq import nsmallest
from typing import NamedTuple

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

    def __init__(self, tree: KnowledgeTree, book: RequestBook, instances: Instances, step: StepBudget | None) -> None:
        self._tree = tree
        self._book = book
        self._instances = instances
        self._step = step

    def route(self, scheduled: ScheduledRequest, among: Collection[str] | None) -> CachedPrefix:
        """Choose the instance that has a request's first token soonest; what the request finds there.

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
        chosen = best(
            Candidate(name, states[name].backlog_s, prefix.seconds, states[name].rank)
            for name, prefix in prefixes.items()
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
