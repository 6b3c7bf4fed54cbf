"""Dynamic speculative pipelining: generate on provisional documents, or wait for better ones.

RAGCache, section 5.3, Algorithm 2. A search in stages often has its final documents long before it ends. A generation
that starts on them overlaps with the stages that only confirm them. The decisions tell the caller what to do:

    START   end the query's speculation, if it has one, and start one on these documents
    KEEP    let the running speculation go on; if the documents are final, it is confirmed and its tokens may leave
    DROP    end the running speculation and start none
    WAIT    nothing runs, and nothing starts

An ended generation finishes its current iteration first. Final documents that no speculation runs on are no guess:
they get DROP or WAIT, and the query is admitted like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cachectl.scheduling.instances import Instances, InstanceState
from cachectl.scheduling.request import Request, RequestBook, RequestKind, ScheduledRequest
from cachectl.scheduling.routing import Router
from cachectl.tree.grant import Grant
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.prefix_lookup import CachedPrefix
from protocol.errors import Overloaded, UnknownPlan
from protocol.plans import SpeculationDecision
from protocol.tiers import Tier


def decide(candidates: Sequence[str], running: Sequence[str] | None, room: bool, final: bool) -> SpeculationDecision:
    """The decision about a query's ``candidates`` after one stage; ``running`` is what its speculation runs on, if any.

    Both are content keys in prompt order: the same documents in another order are another prompt. Empty candidates are
    never speculated on.

    ``room`` says whether the engine's largest useful prefill batch has room for one more, the query's own speculation
    aside, as START ends that one. A speculation then fills room that would stay empty, and otherwise it would delay
    requests. Under the paper's assumptions this rule minimises the expected time to first token (Theorem 5.1).
    """
    # Sequences of different types are never equal, even with equal items.
    if running is not None and tuple(running) == tuple(candidates):
        return SpeculationDecision.KEEP
    if candidates and not final and room:
        return SpeculationDecision.START
    return SpeculationDecision.WAIT if running is None else SpeculationDecision.DROP


class _Running(NamedTuple):
    plan_id: str
    documents: tuple[str, ...]


class Speculations:
    """The plan that each query speculates with, at most one; ``slots`` knows which of them go on."""

    def __init__(self, slots: SpeculativeSlots) -> None:
        self._slots = slots
        self._running: dict[str, _Running] = {}

    def decide(self, query_id: str, documents: Sequence[str], final: bool) -> SpeculationDecision:
        """Decide about a query's documents after one stage, and end or confirm its speculation accordingly."""
        running = self._going_on(query_id)
        plan_id = running.plan_id if running is not None else None
        room = self._slots.has_room(besides=plan_id)
        decision = decide(documents, running.documents if running is not None else None, room, final)
        if running is not None:
            if decision is not SpeculationDecision.KEEP:
                self.end(query_id)
            elif final:
                self._slots.confirm(running.plan_id)
                del self._running[query_id]
        return decision

    def started(self, query_id: str, plan_id: str, documents: Sequence[str]) -> None:
        """Register a query's new speculation, which ends the one that it has."""
        self.end(query_id)
        self._running[query_id] = _Running(plan_id, tuple(documents))

    def end(self, query_id: str) -> None:
        """End a query's speculation, if it has one. Its lease is completed by its holder."""
        running = self._going_on(query_id)
        if running is not None:
            self._slots.withdraw(running.plan_id)
            del self._running[query_id]

    def sweep(self) -> None:
        """Forget speculations that gave way, or whose plans have ended."""
        for query_id in list(self._running):
            self._going_on(query_id)

    def _going_on(self, query_id: str) -> _Running | None:
        running = self._running.get(query_id)
        if running is not None and not self._slots.runs(running.plan_id):
            del self._running[query_id]
            return None
        return running


_SOONEST = 16
"""How many waiting requests of an instance are loaded for: what later turns need would only fill its GPU."""


class SpeculativeSlots:
    """Speculations on provisional documents, and prefetches for requests that wait.

    They fill room that requests leave empty, and make way for them. Loads go on beside running prefills.
    ``start(request, now)`` admits a routed request to the tree.
    """

    def __init__(
        self,
        tree: KnowledgeTree,
        book: RequestBook,
        instances: Instances,
        router: Router,
        start: Callable[[ScheduledRequest, float], Grant],
    ) -> None:
        self._tree = tree
        self._book = book
        self._instances = instances
        self._router = router
        self._start = start

    def has_room(self, besides: str | None = None) -> bool:
        """Whether a speculation could start somewhere if the speculation ``besides`` ended.

        That takes an instance without a queue whose step, the largest useful batch, has tokens left. RAGCache, section
        5.3, counts requests instead: ``pool.size < max_prefill_bs``.
        """
        return any(state.has_room(besides) for state in self._instances.open().values())

    def admit(self, request: Request, now: float) -> Grant | None:
        """Start a speculation; None if there is no room. Raises what ``Scheduler.admit`` does."""
        among = [instance for instance, state in self._instances.open().items() if state.has_room()]
        if not among:
            return None
        guess = self._book.new(request, RequestKind.SPECULATION)
        try:
            prefix = self._router.route(guess, now, among)
        except Overloaded:
            return None
        state = self._instances.states[guess.instance]
        if not state.fits(guess.step_share, beside_all=True):
            return None
        guess.prefix = prefix
        self._book.requests[request.query_id] = state.speculations[request.query_id] = guess
        return self._start(guess, now)

    def runs(self, query_id: str) -> bool:
        """Whether a speculation still runs: it is not confirmed, withdrawn, complete, or ended by a request."""
        guess = self._book.requests.get(query_id)
        if guess is None or guess.is_ahead:
            return False
        return query_id in self._instances.states[guess.instance].speculations

    def confirm(self, query_id: str) -> None:
        """Turn a speculation into a request. Raises UnknownPlan unless it still runs."""
        guess = self._running(query_id)
        self._instances.states[guess.instance].confirm(guess)

    def withdraw(self, query_id: str) -> None:
        """End a speculation; its grant stays until it is complete. Raises UnknownPlan unless it still runs."""
        guess = self._running(query_id)
        self._instances.states[guess.instance].end_speculation(guess)

    def may_prefetch(self, query_id: str) -> bool:
        """Whether a prefetch could start for a waiting request.

        That takes a whole prompt's part of the step, which is free when all slots are held by requests that have their
        first tokens. One prefetch runs at a time.
        """
        state = self._state_of_waiting(query_id)
        return state is not None and state.has_room_for_prefetch()

    def prefetch(self, query_id: str, request: Request, now: float) -> Grant | None:
        """Start to load and compute for a waiting request what its instance's GPU lacks of ``request``.

        That has a path which the waiting request will use, and its own id. It makes way like a speculation. The
        turn of the waiting request does not come before the prefetch ends. None if it may not start (``may_prefetch``),
        if nothing is lacking, or if nothing could be kept.
        """
        if not self.may_prefetch(query_id):
            return None
        waiting = self._book.requests[query_id]
        guess = self._book.new(request, RequestKind.PREFETCH)
        guess.instance = waiting.instance
        prefix = self._book.cached_prefix(guess, guess.instance)
        if len(prefix.copies) == len(guess.keys) and all(copy.cache.tier is Tier.GPU for copy in prefix.copies):
            return None
        guess.step_share = self._router.step_share(prefix)
        guess.prefix = prefix
        return self._start_prefetch(guess, now, waiting)

    def loading_next(self) -> list[list[str]]:
        """The waiting requests that something may be loaded for: the next few of each instance without a prefetch."""
        states = [state for state in self._instances.open().values() if state.queue and not state.prefetches()]
        return [state.queue.soonest(_SOONEST) for state in states]

    def to_load(self, query_id: str) -> int:
        """How many documents to load for a waiting request, from the front; 0 if none.

        None are if all that it would load lies in its instance's GPU, and while a prefetch runs there: one load at a
        time delays those of running requests the least.
        """
        if not self._may_load(query_id):
            return 0
        found = self._book.found(query_id)
        documents = found.loading.documents
        # Faster tiers come first on a path, so the last document is in the GPU only if all are.
        return documents if documents and found.copies[documents - 1].cache.tier is not Tier.GPU else 0

    def load(self, query_id: str, request: Request, now: float) -> Grant | None:
        """Start to load for a waiting request the documents of ``request``, beside running prefills.

        These are the first ``to_load`` ones, and all of its prompt. It has its own id, takes no part of the
        steps, and evicts nothing that any waiting request needs. The turn of the waiting request does not come before
        its end. None if it may not start, or if there is no room.
        """
        if not self._may_load(query_id):
            return None
        waiting = self._book.requests[query_id]
        guess = self._book.new(request, RequestKind.LOAD)
        guess.instance = waiting.instance
        found = self._book.found(query_id)
        load_s = found.loading.seconds
        guess.prefix = CachedPrefix(found.copies[: len(guess.keys)], found.loading, 0, load_s, load_s)
        return self._start_prefetch(guess, now, waiting)

    def _may_load(self, query_id: str) -> bool:
        state = self._state_of_waiting(query_id)
        return state is not None and not state.prefetches()

    def _state_of_waiting(self, query_id: str) -> InstanceState | None:
        """The instance that a request waits for; None if it does not wait, or if that is retired."""
        if not self._book.waits(query_id):
            return None
        return self._instances.open().get(self._book.requests[query_id].instance)

    def may_generate(self, query_id: str) -> bool:
        """Whether a KV generator is idle, and none computes all documents of a waiting request already."""
        generating = self._instances.generating()
        if all(state.speculations for state in generating.values()) or not self._book.waits(query_id):
            return False
        keys = self._book.requests[query_id].keys
        guesses = [guess for state in generating.values() for guess in state.speculations.values()]
        return bool(keys) and not any(keys[-1] in guess.keys for guess in guesses)

    def generate(self, query_id: str, request: Request, now: float) -> Grant | None:
        """Start to compute ``request`` for a waiting request on a KV generator, which copies it to its shared tiers.

        It has a path which the waiting request will use, and its own id. The waiting request's turn may come
        before the end. None if it may not start (``may_generate``), if the instance of the waiting request can load all
        documents, or if nothing could be kept.
        """
        if not self.may_generate(query_id):
            return None
        waiting = self._book.requests[query_id]
        guess = self._book.new(request, RequestKind.PREFETCH)
        found = self._tree.lookup.loadable(request.namespace, request.documents, waiting.instance)
        if len(found) == len(guess.keys):
            return None
        idle = [name for name, state in self._instances.generating().items() if not state.speculations]
        prefixes = {name: self._book.cached_prefix(guess, name) for name in idle}
        guess.instance = min(prefixes, key=lambda name: prefixes[name].seconds)
        guess.prefix = prefixes[guess.instance]
        guess.step_share = self._router.step_share(guess.prefix)
        return self._start_prefetch(guess, now)

    def _start_prefetch(
        self, guess: ScheduledRequest, now: float, waiting: ScheduledRequest | None = None
    ) -> Grant | None:
        """Start a prefetch, for whose end a ``waiting`` request waits, if any; None if nothing of it could be kept."""
        query_id, state = guess.request.query_id, self._instances.states[guess.instance]
        self._book.requests[query_id] = state.speculations[query_id] = guess
        grant = self._start(guess, now)
        if not any(document.kept is not None and document.kept is not document.source for document in grant.documents):
            self._tree.grants.complete(grant, kept=False)
            del self._book.requests[query_id], state.speculations[query_id]
            return None
        if waiting is not None:
            waiting.prefetched_by = query_id
        return grant

    def _running(self, query_id: str) -> ScheduledRequest:
        if not self.runs(query_id):
            raise UnknownPlan(f"query {query_id!r} has no running speculation")
        return self._book.requests[query_id]
