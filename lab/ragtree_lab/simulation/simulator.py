"""Discrete-event simulator of the serving stack: the shipped scheduler and tree on a virtual clock.

Routing, queues with reordering, the knowledge tree with its tiers, and the policy are the classes that serve. Engines
are modelled: an instance prefills one request after another. A prefill takes the seconds of a device's cost grid, after
the KV of the plan is loaded over the device's link. Tokens then take ``decode_s`` each, while the next prefill runs.
Swapping out uses the other direction of the link and costs nothing.

With ``load_ahead_s``, what a request needs of slower tiers is loaded after so many seconds in the queue, as in the live
controller: one load at a time on each instance, while it prefills for others. Such a load takes the link, so that loads
of prefills wait for its end. Nothing is computed ahead.

With composed reuse, documents that a composed prompt found no KV of are computed behind its first document, as in the
live controller, if that is done before the next request arrives. Selecting what is computed again costs nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from cachectl.nodes.node import PathDocument
from cachectl.scheduling.document_order import OrderStrategy, order_by_name
from cachectl.scheduling.queue import SLACK, WINDOW
from cachectl.scheduling.request import Request
from cachectl.scheduling.scheduler import Scheduler
from protocol.plans import DocumentOrder
from protocol.tiers import Tier
from ragtree_lab.simulation.time_histogram import TimeHistogram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cachectl.costs.device_profile import DeviceProfile
    from cachectl.nodes.node import Node
    from cachectl.tree.grant import Grant
    from ragtree_lab.workloads.workload import TraceRequest, Workload


PREFILLED, FINISHED, LOADED, WAITED = range(4)
"""Kinds of events."""


class SimulatedService(NamedTuple):
    """The simulated service: instances, running and queued requests per instance, and the bounds on reordering.

    Requests that arrive while every queue is full wait outside, first come, first served. Their waiting time counts.
    With a ``recompute_share``, prompts may be composed, and so much of what is donated to them is computed again.
    Requests that have waited for ``load_ahead_s`` seconds are loaded for; None if none are.
    """

    instances: int = 1
    max_running: int = 4
    max_queued: int = 256
    reorder_window: int = WINDOW
    reorder_slack: float = SLACK
    decode_s: float = 0.0
    order: DocumentOrder = DocumentOrder.RETRIEVAL
    recompute_share: float | None = None
    load_ahead_s: float | None = None


class SimulationResult(msgspec.Struct, frozen=True):
    """Results of a workload under one policy.

    ``doc_hit_rate`` is hits over retrieved documents, ``token_hit_rate`` the same in tokens. A document is a hit if it
    and all documents in front of it come from a tier, or if its KV comes from elsewhere in the tree. What is computed
    again of the latter is no hit; ``composed_tokens`` are the rest. Times are on the virtual clock; TTFT is from
    arrival to the end of prefill. ``evictions`` counts nodes evicted from a tier to make room.
    """

    doc_hit_rate: float
    token_hit_rate: float
    mean_ttft_s: float
    p99_ttft_s: float
    evictions: int
    requests: int
    documents: int
    hit_tokens_by_tier: dict[str, int]
    evictions_by_tier: dict[str, int]
    largest_overtake: int
    simulated_s: float
    composed_tokens: int = 0


class _Running:
    """A request between its arrival and its end."""

    __slots__ = ("arrival_s", "output_tokens", "system_documents", "total_tokens")

    def __init__(self, request: TraceRequest, system_documents: int) -> None:
        self.arrival_s = request.arrival_s
        self.output_tokens = request.output_tokens
        self.system_documents = system_documents
        self.total_tokens = request.system_tokens + request.question_tokens
        for document in request.documents:
            self.total_tokens += document.tokens


def system_prompt(request: TraceRequest) -> list[PathDocument]:
    """Return the document that a request's path begins with; none without a system prompt."""
    if not request.system_tokens:
        return []
    return [PathDocument(f"system {request.system_id}", request.system_tokens)]


def ordered_documents(request: TraceRequest, order: OrderStrategy, above: Node | None) -> list[PathDocument]:
    """Return a request's documents in prompt order; ``above`` is the tree's node in front of them, if any."""
    indices = order([document.id for document in request.documents], above)
    return [PathDocument(*request.documents[index]) for index in indices]


class Simulator:
    """Runs one workload through one scheduler. Memory depends on the tree and the queues, not on the workload."""

    def __init__(self, scheduler: Scheduler, device: DeviceProfile, service: SimulatedService) -> None:
        self._scheduler = scheduler
        self._tree = scheduler.tree
        self._device = device
        self._service = service
        self._order = order_by_name(service.order)
        # By time, with kinds and queries.
        self._events: list[tuple[float, int, int, str]] = []
        self._event_count = 0
        self._engine_free_s = dict.fromkeys(scheduler.tree.tiers.gpus, 0.0)
        self._link_free_s = dict.fromkeys(scheduler.tree.tiers.gpus, 0.0)
        # Requests that have waited for long enough, and those that were loaded for.
        self._overdue: set[str] = set()
        self._loaded: set[str] = set()
        self._running: dict[str, _Running] = {}
        self._ttft = TimeHistogram()
        self._documents = self._hit_documents = self._tokens = self._composed_tokens = 0
        self._hit_tokens = dict.fromkeys(Tier, 0)

    def run(self, workload: Workload, progress: Callable[[int], None]) -> SimulationResult:
        """Serve every request. ``progress`` is called with the number of newly arrived requests."""
        now = 0.0
        arrived = 0
        requests: Iterator[TraceRequest] = iter(workload.requests())
        room = self._service.instances * (self._service.max_running + self._service.max_queued)
        upcoming = next(requests, None)
        while upcoming is not None or self._events:
            full = len(self._running) >= room or self._blocked()
            if upcoming is not None and not full and (not self._events or upcoming.arrival_s <= self._events[0][0]):
                now = max(now, upcoming.arrival_s)
                arrived += 1
                self._arrive(str(arrived), upcoming, now)
                progress(1)
                upcoming = next(requests, None)
            else:
                now, _, kind, query_id = heapq.heappop(self._events)
                if kind == WAITED:
                    self._overdue.add(query_id)
                elif kind == PREFILLED:
                    self._prefilled(query_id, now)
                elif kind == LOADED:
                    self._end(query_id, now)
                else:
                    self._finish(query_id, now)
                if self._overdue:
                    self._load_ahead(now)
        return self._result(arrived, now)

    def _arrive(self, query_id: str, traced: TraceRequest, now: float) -> None:
        system = system_prompt(traced)
        above = self._tree.registry.roots.get(traced.system_id)
        for document in system:
            above = above.child(document.content) if above is not None else None
        documents = ordered_documents(traced, self._order, above)
        path = (*system, *documents)
        share = self._service.recompute_share
        request = Request(
            query_id, traced.system_id, path, traced.question_tokens, pinned=len(system), recompute_share=share
        )
        self._running[query_id] = _Running(traced, len(system))
        grant = self._scheduler.admit(request, now)
        if grant is not None:
            self._start(grant, now)
        elif self._service.load_ahead_s is not None:
            self._at(now + self._service.load_ahead_s, WAITED, query_id)

    def _blocked(self) -> bool:
        """Whether all queues are full although slots may be free: the first request waits for its load ahead."""
        if self._service.load_ahead_s is None:
            return False
        return not any(self._scheduler.instances.may_queue(instance) for instance in self._engine_free_s)

    def _load_ahead(self, now: float) -> None:
        """Begin to load for the next requests that have waited, where nothing is loaded for others."""
        book, slots = self._scheduler.book, self._scheduler.speculative
        self._overdue = {query_id for query_id in self._overdue if book.waits(query_id)}
        for soonest in slots.loading_next():
            for query_id in soonest:
                documents = slots.to_load(query_id) if query_id in self._overdue - self._loaded else 0
                if documents:
                    asked = book.requests[query_id].request
                    ahead = asked._replace(
                        query_id=f"{query_id}~load", documents=asked.documents[:documents], question_tokens=0
                    )
                    grant = slots.load(query_id, ahead, now)
                    if grant is not None:
                        self._loaded.add(query_id)
                        self._carry(grant, now)
                    break

    def _carry(self, grant: Grant, now: float) -> None:
        """Have the link carry what a plan loads ahead."""
        sources = [(document.tokens, document.source) for document in grant.documents if document.source is not None]
        load_s = sum(self._device.load_seconds(tokens, source) for tokens, source in sources)
        end = max(now, self._link_free_s[grant.instance]) + load_s
        self._link_free_s[grant.instance] = end
        self._at(end, LOADED, grant.query_id)

    def _start(self, grant: Grant, now: float) -> None:
        """Count the plan's hits, and schedule its prefill for when the engine is free."""
        running = self._running[grant.query_id]
        # What a prefill in front computes is no hit, although the prompt itself finds it cached or donated.
        origins = {document.key: document for document in grant.first.values()}
        first = {key: document.tokens for key, document in origins.items() if document.source is None}
        cached = sum(first.values())
        load_s = 0.0
        for index, granted in enumerate(grant.documents):
            step = origins.get(granted.key, granted)
            document = index >= running.system_documents
            if document:
                self._documents += 1
                self._tokens += step.tokens
            if step.donor is not None:
                again = round((grant.recompute_share or 0.0) * step.tokens)
                load_s += self._device.load_seconds(step.tokens, step.donor.source)
                if step.donor.key in first:
                    cached -= again
                    continue
                self._hit_documents += 1
                self._composed_tokens += step.tokens - again
                cached += step.tokens - again
            elif step.source is not None:
                cached += step.tokens
                load_s += self._device.load_seconds(step.tokens, step.source)
                if document:
                    self._hit_documents += 1
                    self._hit_tokens[step.source] += step.tokens
        # The last token is always computed: the answer's first token comes from it.
        computed = max(1, running.total_tokens - cached)
        begin = max(now, self._engine_free_s[grant.instance])
        if load_s:
            begin = max(begin, self._link_free_s[grant.instance])
            self._link_free_s[grant.instance] = begin + load_s
        end = begin + load_s + self._device.prefill_seconds(max(0, running.total_tokens - computed), computed)
        if first:
            front = sum(document.tokens for document in grant.first.values() if document.source is not None)
            end += self._device.prefill_seconds(front, sum(first.values()))
        self._engine_free_s[grant.instance] = end
        self._at(end, PREFILLED, grant.query_id)

    def _prefilled(self, query_id: str, now: float) -> None:
        running = self._running[query_id]
        self._ttft.add(now - running.arrival_s)
        decode_s = running.output_tokens * self._service.decode_s
        if decode_s:
            for grant in self._scheduler.prefilled(query_id, now):
                self._start(grant, now)
            self._at(now + decode_s, FINISHED, query_id)
        else:
            self._finish(query_id, now)

    def _finish(self, query_id: str, now: float) -> None:
        del self._running[query_id]
        self._loaded.discard(query_id)
        self._end(query_id, now)

    def _end(self, query_id: str, now: float) -> None:
        """Complete a plan, and start the requests whose turn that makes."""
        for grant in self._scheduler.complete(query_id, now, kept=True, unwritten=()):
            self._start(grant, now)

    def _at(self, time_s: float, kind: int, query_id: str) -> None:
        self._event_count += 1
        heapq.heappush(self._events, (time_s, self._event_count, kind, query_id))

    def _result(self, arrived: int, now: float) -> SimulationResult:
        evictions = dict.fromkeys(Tier, 0)
        for cache in self._tree.tiers:
            evictions[cache.tier] += cache.evictions
        return SimulationResult(
            doc_hit_rate=self._hit_documents / self._documents if self._documents else 0.0,
            token_hit_rate=(
                (sum(self._hit_tokens.values()) + self._composed_tokens) / self._tokens if self._tokens else 0.0
            ),
            mean_ttft_s=self._ttft.mean,
            p99_ttft_s=self._ttft.percentile(99),
            evictions=sum(evictions.values()),
            requests=arrived,
            documents=self._documents,
            hit_tokens_by_tier={tier.value: tokens for tier, tokens in self._hit_tokens.items()},
            evictions_by_tier={tier.value: count for tier, count in evictions.items()},
            largest_overtake=self._scheduler.instances.largest_overtake,
            simulated_s=now,
            composed_tokens=self._composed_tokens,
        )
