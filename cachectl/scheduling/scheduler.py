"""The scheduler: whose turn it is, where, and what of the knowledge tree it gets.

    submit ─► route to an instance ─► wait in its cache-aware queue ─► Grant ─► prefilled ─► complete
    speculate ─► Grant, or none ─► confirm, withdraw, or give way to a request ─► complete
    prepare ─► Grant, or none, for one that waits ─► complete, or give way to others; then it may be that one's turn

Both the first token and the end of a request may be others' turn.

Synchronous and without a clock: the live controller and a simulator drive the same object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachectl.scheduling.instance_state import InstanceState, Request, ScheduledRequest
from cachectl.scheduling.queue import CacheAwareQueue
from cachectl.scheduling.routing import Candidate, route
from protocol.errors import ConfigError, EngineDied, InvalidRequest, Overloaded, UnknownPlan
from protocol.tiers import Tier

if TYPE_CHECKING:
    from collections.abc import Collection

    from cachectl.policies.lookahead import Lookahead
    from cachectl.tree.grant import Grant
    from cachectl.tree.knowledge_tree import KnowledgeTree
    from cachectl.tree.load_or_recompute import Loading
    from protocol.generation import StepBudget

_AHEAD_STEPS = 2


class Scheduler:
    """Lets at most ``max_running`` requests run on each instance, and at most ``max_queued`` wait for it.

    Those that wait go by OrderPriority (RAGCache, section 5.2), overtaken ``window`` times at most. Where an engine's
    ``step`` is known, no more prefills run at once than fit into one: it would only let the others wait in an order of
    its own. Speculations fill what is left of that, and end when a request needs it. Raises ConfigError where nothing
    could ever run.
    """

    def __init__(
        self,
        tree: KnowledgeTree,
        lookahead: Lookahead,
        max_running: int,
        max_queued: int,
        window: int,
        step: StepBudget | None = None,
    ) -> None:
        if max_running < 1:
            raise ConfigError(f"an instance works on one request at least, not on {max_running}")
        self.tree = tree
        self._lookahead = lookahead
        self._max_running = max_running
        self._step = step
        self._max_queued = max_queued
        self._window = window
        self._work: dict[str, ScheduledRequest] = {}
        self._states: dict[str, InstanceState] = {}
        for instance in tree.tiers.gpus:
            self._states[instance] = self._new_state()

    @property
    def running(self) -> int:
        """Requests that hold a grant, speculations aside."""
        return sum(state.running for state in self._states.values())

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return sum(len(state.queue) for state in self._states.values())

    @property
    def largest_overtake(self) -> int:
        """The greatest number of times that a request was overtaken so far."""
        return max((state.queue.largest_overtake for state in self._states.values()), default=0)

    @property
    def sharing(self) -> set[str]:
        """The instances that are given requests and reach the shared tiers."""
        return {instance for instance in self._open() if not self.tree.tiers.isolated(instance)}

    def loads(self) -> list[tuple[str, int, int]]:
        """Of every instance, how many requests run there and wait for it."""
        return [(instance, state.running, len(state.queue)) for instance, state in self._states.items()]

    @property
    def idle(self) -> list[str]:
        """Instances on which nothing runs or waits."""
        return [
            name
            for name, state in self._open().items()
            if not state.running and not state.queue and not state.speculations
        ]

    def cached(self, request: Request) -> bool:
        """Whether some instance has all of a request's documents."""
        return any(
            len(self.tree.hits(request.namespace, request.documents, instance)) == len(request.documents)
            for instance in self._open()
        )

    def admit(self, request: Request, now: float, among: Collection[str] | None = None) -> Grant | None:
        """Take a request on, for one of the instances ``among`` if any are named.

        Returns its grant if it may run at once, None if it has to wait. Raises InvalidRequest for a query that is known
        already and for a document whose length is another one than the tree knows, Overloaded when no more may wait,
        Unavailable when there is no instance, and EngineDied when there is none but those to avoid; then nothing has
        changed. Where all that there are have retired, it waits for another to come.
        """
        work = self._taken_on(request)
        loading = self._route(work, among)
        state = self._states[work.instance]
        work.step_share = self._step_share(work, loading)
        fits = self._fits(work.instance, work.step_share)
        starts = fits and not state.queue
        if not starts:
            state.queue.push(request.query_id, loading.tokens, work.tokens - loading.tokens)
            self._lookahead.enter(request.query_id, work.keys)
        self._work[request.query_id] = work
        state.backlog_s += work.seconds
        # Those that wait may do so for more of a step than is free; who needs less goes past them if it comes first.
        if fits and not starts and state.queue.pop(request.query_id.__eq__) is not None:
            self._lookahead.leave(request.query_id)
            starts = True
        return self._start(work, now) if starts else None

    def room(self, besides: str | None = None) -> bool:
        """Whether a speculation could start somewhere, ``besides`` one that would end for it.

        That is where nothing waits and the engine's step, its largest useful batch, has tokens left (RAGCache, section
        5.3, counts requests: ``pool.size < max_prefill_bs``).
        """
        return any(state.has_room(besides) for state in self._open().values())

    def speculate(self, request: Request, now: float) -> Grant | None:
        """Start a prefill that may turn out not to be wanted, in room that would stay empty; None where there is none.

        Raises what ``submit`` does; then nothing has changed.
        """
        among = [instance for instance, state in self._open().items() if state.has_room()]
        if not among:
            return None
        work = self._taken_on(request)
        try:
            loading = self._route(work, among)
        except Overloaded:
            return None
        state = self._states[work.instance]
        work.step_share = self._step_share(work, loading)
        if not state.fits_beside_all(work.step_share):
            return None
        work.speculative = True
        self._work[request.query_id] = state.speculations[request.query_id] = work
        return self._start(work, now)

    def waits(self, query_id: str) -> bool:
        """Whether a request waits for its turn."""
        work = self._work.get(query_id)
        return work is not None and work.grant is None

    def may_prepare(self, query_id: str) -> bool:
        """Whether a request waits where a whole prompt's part of the engine's step is free, and no other is prepared.

        That is the case while all places are taken by requests that have their first tokens.
        """
        if not self.waits(query_id) or self._work[query_id].instance not in self._open():
            return False
        return self._states[self._work[query_id].instance].prompts_part_is_free()

    def prepare(self, query_id: str, plan_id: str, now: float) -> Grant | None:
        """Begin to load and compute what a waiting request lacks in its instance's GPU, ahead of its turn.

        The grant is under an id of its own and gives way like a speculation. The request's turn does not come before it
        has ended: it does what that would do. None unless it may begin (``may_prepare``), and where nothing is lacking
        or nothing of it could be kept.
        """
        if not self.may_prepare(query_id):
            return None
        waiting = self._work[query_id]
        work = self._taken_on(waiting.request._replace(query_id=plan_id))
        work.instance = waiting.instance
        found = self.tree.hits(work.request.namespace, work.request.documents, work.instance)
        if len(found) == len(work.keys) and all(copy.cache.tier is Tier.GPU for copy in found):
            return None
        work.step_share = self._step_share(work, self.tree.loading(found, work.tokens))
        work.speculative = work.prepares = True
        state = self._states[work.instance]
        self._work[plan_id] = state.speculations[plan_id] = work
        grant = self._start(work, now)
        if not any(step.kept is not None and step.kept is not step.source for step in grant.documents):
            self.tree.complete(grant, kept=False)
            del self._work[plan_id], state.speculations[plan_id]
            return None
        waiting.prepared_by = plan_id
        return grant

    def speculates(self, query_id: str) -> bool:
        """Whether a speculation goes on: neither confirmed nor withdrawn, nor has it given way or ended."""
        work = self._work.get(query_id)
        return work is not None and not work.prepares and query_id in self._states[work.instance].speculations

    def confirm(self, query_id: str) -> None:
        """Take a speculation for the request that it turned out to be. Raises UnknownPlan unless it goes on."""
        work = self._speculation(query_id)
        state = self._states[work.instance]
        del state.speculations[query_id]
        work.speculative = False
        state.running += 1
        state.step_tokens += work.step_share
        state.backlog_s += work.seconds

    def withdraw(self, query_id: str) -> None:
        """Count no more on a speculation; its grant stays until completed. Raises UnknownPlan unless it goes on."""
        work = self._speculation(query_id)
        self._states[work.instance].give_way(work)

    def prefilled(self, query_id: str, now: float, lost: Collection[tuple[bytes, Tier]] = ()) -> list[Grant]:
        """Hear that a running request has its first token: what it computed serves others from now on.

        The grants of those whose turn that makes it. ``lost`` is ``KnowledgeTree.lose``'s. Raises UnknownPlan for a
        query that does not run; nothing changes.
        """
        work = self._running_work(query_id)
        assert work.grant is not None
        self._gained(self.tree.prefilled(work.grant, lost))
        self._states[work.instance].leave_step(work)
        return self._next(work.instance, now)

    def handover_in(self, query_id: str) -> float | None:
        """How many seconds after it began a prefill is about to end, by what it should take.

        That is two of the engine's steps before the end: one for what prefills differ by, one in which the next has to
        arrive. Of a short prefill it is the half. None where nothing could be handed over now.
        """
        work = self._work.get(query_id)
        if work is None or work.grant is None or not self._may_hand_over(work):
            return None
        cached = sum([step.tokens for step in work.grant.documents if step.source is not None])
        seconds = self.tree.prefill_seconds(cached, work.tokens - cached)
        step_s = self.tree.prefill_seconds(work.tokens - work.step_share, work.step_share)
        return seconds - min(_AHEAD_STEPS * step_s, seconds / 2)

    def hand_over(self, query_id: str, now: float) -> list[Grant]:
        """Give away what a running request takes of its engine's steps, for its first token is due.

        One at a time on an instance, so the others go on waiting in their order. The grants of those whose turn that
        makes it; none where nothing could be handed over.
        """
        work = self._work.get(query_id)
        if work is None or not self._may_hand_over(work):
            return []
        self._states[work.instance].hand_over(work)
        return self._next(work.instance, now)

    def stalled(self, query_id: str, now: float) -> list[Grant]:
        """Hear that a running request's first token is overdue: it keeps nobody waiting any more.

        The grants of those whose turn that makes it. Raises UnknownPlan for a query that does not run.
        """
        work = self._running_work(query_id)
        self._states[work.instance].leave_step(work)
        if work.prepares and query_id in self._states[work.instance].speculations:
            self._states[work.instance].give_way(work)
        return self._next(work.instance, now)

    def complete(self, query_id: str, now: float, kept: bool, lost: Collection[tuple[bytes, Tier]] = ()) -> list[Grant]:
        """End a request, running or waiting; the grants of those whose turn that makes it.

        ``kept`` and ``lost`` are ``KnowledgeTree.settle``'s; a request that waits has no plan that could have lost
        anything. Raises UnknownPlan for a query that is not in hand; then nothing has changed.
        """
        work = self._work.get(query_id)
        if work is None:
            raise UnknownPlan(f"query {query_id!r} holds no plan and waits for none")
        state = self._states[work.instance]
        if work.grant is None:
            state.queue.remove(query_id)
            self.tree.reconsider(self._lookahead.leave(query_id))
        else:
            self._gained(self.tree.complete(work.grant, kept, lost))
            self._states[work.instance].leave_step(work)
        del self._work[query_id]
        if work.speculative:
            state.speculations.pop(query_id, None)
            # Nobody waits for a guess.
            return self._next(work.instance, now) if work.prepares else []
        state.running -= work.grant is not None
        state.backlog_s = state.backlog_s - work.seconds if state.running or state.queue else 0.0
        return self._next(work.instance, now)

    def naming(self, contents: Collection[str], namespace: str | None) -> set[str]:
        """The queries, running or waiting, with any of these documents; of one namespace or, if None, of all."""
        return {
            query_id
            for query_id, work in self._work.items()
            if (namespace is None or work.request.namespace == namespace)
            and any(content in contents for content in work.contents)
        }

    def reprioritise(self) -> None:
        """Look at every waiting request anew: the tree has changed as a whole."""
        for state in self._states.values():
            for query_id in state.queue:
                state.queue.reprioritise(query_id, *self._progress(query_id))

    def add_instance(self, instance: str, isolated: bool = False) -> None:
        """Let a new instance take requests; one that is known goes on. ``isolated`` is the tree's."""
        self.tree.add_instance(instance, isolated)
        if instance not in self._states:
            self._states[instance] = self._new_state()

    def retire_instance(self, instance: str) -> None:
        """Give an instance nothing more; what runs there goes on. Raises UnknownInstance."""
        self.tree.tiers.gpu(instance)
        self.tree.tiers.retired.add(instance)

    def reinstate_instance(self, instance: str, now: float) -> list[Grant]:
        """Give an instance requests again that was retired and has not ended; the grants of those whose turn that is.

        Raises UnknownInstance.
        """
        self.tree.tiers.gpu(instance)
        self.tree.tiers.retired.discard(instance)
        return self._next(instance, now)

    def stranded(self) -> list[Request]:
        """Take out the requests that wait for retired instances while there is another, to be submitted anew.

        In their order of arrival.
        """
        retired = self.tree.tiers.retired
        if not retired or not self._open():
            return []
        taken = [work for work in self._work.values() if work.grant is None and work.instance in retired]
        for work in taken:
            query_id, state = work.request.query_id, self._states[work.instance]
            state.queue.remove(query_id)
            self.tree.reconsider(self._lookahead.leave(query_id))
            del self._work[query_id]
            state.backlog_s = state.backlog_s - work.seconds if state.running or state.queue else 0.0
        return [work.request for work in taken]

    def ended_instances(self) -> list[str]:
        """Retired instances on which nothing runs or waits any more; none while requests have nowhere else to wait."""
        if not self._open():
            return []
        busy = {work.instance for work in self._work.values()}
        return sorted(self.tree.tiers.retired - busy)

    def remove_instance(self, instance: str) -> list[Request]:
        """Forget an instance that is gone; the requests that ran on it or waited for it, to be submitted anew.

        Raises UnknownInstance.
        """
        self.tree.remove_instance(instance)
        lost = [work for work in self._work.values() if work.instance == instance]
        for work in lost:
            del self._work[work.request.query_id]
            if work.grant is None:
                self.tree.reconsider(self._lookahead.leave(work.request.query_id))
        del self._states[instance]
        return [work.request for work in lost]

    def check_integrity(self) -> None:
        """Assert that places, queues, lookahead and grants agree."""
        granted = {query_id for query_id, work in self._work.items() if work.grant is not None}
        assert granted == set(self.tree.grants)
        assert self._work.keys() - granted == {query_id for state in self._states.values() for query_id in state.queue}
        assert len(self._lookahead) == self.queued
        for instance, state in self._states.items():
            state.queue.check_integrity()
            here = [self._work[query_id] for query_id in granted if self._work[query_id].instance == instance]
            requests = [work for work in here if not work.speculative]
            assert state.running == len(requests) <= self._max_running
            assert state.step_tokens == sum(work.step_share for work in requests)
            assert all(work in here and work.speculative for work in state.speculations.values())
            others = [work for work in here if work.speculative and work not in state.speculations.values()]
            assert not any(work.step_share for work in others), "what gave way takes part of a step"
            assert state.slots_taken() <= self._max_running
            prepares = any(work.prepares for work in state.speculations.values())
            full = state.running == self._max_running or state.step_tokens or prepares
            retired = instance in self.tree.tiers.retired
            assert not state.queue or full or retired, "a request waits beside a free place"
            assert not (state.queue and retired and self._open()), "a request waits where nothing starts any more"

    def _taken_on(self, request: Request) -> ScheduledRequest:
        """A new request, found to be well formed."""
        if request.query_id in self._work:
            raise InvalidRequest(f"query {request.query_id} was submitted before")
        if request.question_tokens < 0 or any(document.tokens <= 0 for document in request.documents):
            raise InvalidRequest("documents have at least one token, and questions not less than none")
        work = ScheduledRequest(request)
        for document, key in zip(request.documents, work.keys, strict=True):
            node = self.tree.nodes.get(key)
            if node is not None and node.tokens != document.tokens:
                raise InvalidRequest(
                    f"document {document.content} has {node.tokens} tokens in the tree, not {document.tokens}"
                )
        return work

    def _speculation(self, query_id: str) -> ScheduledRequest:
        if not self.speculates(query_id):
            raise UnknownPlan(f"query {query_id!r} does not speculate")
        return self._work[query_id]

    def _running_work(self, query_id: str) -> ScheduledRequest:
        work = self._work.get(query_id)
        if work is None or work.grant is None:
            raise UnknownPlan(f"query {query_id!r} does not run")
        return work

    def _route(self, work: ScheduledRequest, among: Collection[str] | None) -> Loading:
        """Choose the instance for a request; what it loads there."""
        states = self._open() or self._states
        if work.request.avoid:
            states = {instance: state for instance, state in states.items() if instance not in work.request.avoid}
            if not states:
                raise EngineDied("there is no other instance of the generator")
        loadings: dict[str, Loading] = {}
        for instance, state in states.items():
            may_wait = len(state.queue) < self._max_queued
            if (among is None or instance in among) and (may_wait or not state.queue):
                loading = self._loading(work, instance)
                if may_wait or self._fits(instance, self._step_share(work, loading)):
                    loadings[instance] = loading
        if states and not loadings:
            raise Overloaded(f"{self.running} queries are running and {self.queued} waiting; try again later")
        candidates = [
            Candidate(
                instance,
                self._states[instance].backlog_s,
                loading.seconds + self.tree.prefill_seconds(loading.tokens, work.tokens - loading.tokens),
            )
            for instance, loading in loadings.items()
        ]
        chosen = route(candidates)
        work.instance, work.seconds = chosen.instance, chosen.prefill_s
        return loadings[chosen.instance]

    def _loading(self, work: ScheduledRequest, instance: str) -> Loading:
        """What a request would load on an instance as the tree is now."""
        return self.tree.loading(self.tree.hits(work.request.namespace, work.request.documents, instance), work.tokens)

    def _progress(self, query_id: str) -> tuple[int, int]:
        """Cached and computed tokens of a waiting request as the tree is now."""
        work = self._work[query_id]
        cached = self._loading(work, work.instance).tokens
        return cached, work.tokens - cached

    def _start(self, work: ScheduledRequest, now: float) -> Grant:
        request = work.request
        work.grant = self.tree.admit(
            request.query_id,
            request.namespace,
            request.documents,
            work.keys,
            request.question_tokens,
            work.instance,
            now,
            request.pinned,
        )
        if not work.speculative:
            state = self._states[work.instance]
            state.running += 1
            state.step_tokens += work.step_share
            work.grant.ends += state.make_way()
        if len(self._states) > 1 and self._lookahead:
            # What went to a shared tier can be used by requests that wait for other instances.
            for move in work.grant.moves:
                if move.target is not None:
                    self._gained(bytes.fromhex(move.node))
        return work.grant

    def _next(self, instance: str, now: float) -> list[Grant]:
        state = self._states[instance]
        grants: list[Grant] = []
        while self._has_slot(instance):
            turn = state.queue.pop(self._fits_now)
            if turn is None:
                break
            self._lookahead.leave(turn.query_id)
            grant = self._start(self._work[turn.query_id], now)
            grant.overtaken = turn.overtaken
            grants.append(grant)
        return grants

    def _may_hand_over(self, work: ScheduledRequest) -> bool:
        """Whether somebody waits for what a request takes of its engine's steps, and nobody came in ahead so far."""
        if work.grant is None or work.speculative or not work.step_share:
            return False
        state = self._states[work.instance]
        return self._has_slot(work.instance) and bool(state.queue) and state.due is None

    def _step_share(self, work: ScheduledRequest, loading: Loading) -> int:
        """Tokens of each step of the engine that a request's prefill will take, 0 where steps have no bound.

        What loads for longer than it computes takes none: the engine would be idle meanwhile.
        """
        if self._step is None:
            return 0
        computed = work.tokens - loading.tokens
        if loading.seconds > self.tree.prefill_seconds(loading.tokens, computed):
            return 0
        return min(computed, self._step.prompt_tokens)

    def _new_state(self) -> InstanceState:
        return InstanceState(
            CacheAwareQueue(self._max_queued, self._window, self._progress), self._max_running, self._step
        )

    def _open(self) -> dict[str, InstanceState]:
        """The instances that are given requests."""
        retired = self.tree.tiers.retired
        if not retired:
            return self._states
        return {instance: state for instance, state in self._states.items() if instance not in retired}

    def _has_slot(self, instance: str) -> bool:
        """Whether an instance is given requests, and works on fewer than it may."""
        return instance not in self.tree.tiers.retired and self._states[instance].has_slot()

    def _fits(self, instance: str, step_share: int) -> bool:
        """Whether a request could start on an instance that takes so many tokens of each step."""
        return self._has_slot(instance) and self._states[instance].fits(step_share)

    def _fits_now(self, query_id: str) -> bool:
        """Whether a place that is free could go to a request, as the tree is now: its step fits, nobody prepares it."""
        work = self._work[query_id]
        if work.prepared_by in self._states[work.instance].speculations:
            return False
        if self._step is None:
            return True
        work.step_share = self._step_share(work, self._loading(work, work.instance))
        return self._states[work.instance].fits(work.step_share)

    def _gained(self, uppermost: bytes | None) -> None:
        """Tell the queues of what the tree has gained: whoever needs any of it needs its uppermost node, by its key."""
        if uppermost is not None:
            for query_id in self._lookahead.waiting_for(uppermost):
                self._states[self._work[query_id].instance].queue.reprioritise(query_id, *self._progress(query_id))
