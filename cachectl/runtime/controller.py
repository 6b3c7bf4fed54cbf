"""The controller's public face: typed messages in, decisions out, leases kept.

on_candidates ─► Speculations ─► speculate        admit ─► Scheduler ─► Grant ─► PrefillPlan ─► prefilled ─► complete
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import nullcontext, suppress

import msgspec

from cachectl.costs.device_profile import Costs
from cachectl.policies import create_policy
from cachectl.policies.lookahead import Lookahead
from cachectl.runtime.deletion import Deletion
from cachectl.runtime.deliveries import Deliveries
from cachectl.runtime.executor import Executor
from cachectl.runtime.leases import Leases
from cachectl.runtime.prefetch import Prefetcher
from cachectl.runtime.tombstones import Tombstones
from cachectl.scheduling.document_order import order_by_name
from cachectl.scheduling.plan_translation import lost_copies, planned_nodes, reordered, request_of, spare_keys
from cachectl.scheduling.request import Request
from cachectl.scheduling.scheduler import Scheduler
from cachectl.scheduling.speculation import Speculations
from cachectl.settings import ControllerSettings, Swap
from cachectl.tree.grant import Grant
from cachectl.tree.integrity import check_integrity
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.page_allocator import PageAllocator
from cachectl.tree.restore import restore
from cachectl.tree.snapshot import DeletionRecord, NodeRecord, Snapshot, record_of
from cachectl.tree.tier_manager import Capacities
from cachectl.tree.view import tier_stats, tree_view
from protocol.cache import CachePath, DocumentDeletion, RestoreResult, TreeView
from protocol.errors import InvalidRequest, Overloaded, PinRefused, UnknownNode
from protocol.generation import StepBudget
from protocol.kv import LostCopy, ResidencyReport
from protocol.plans import (
    AdmissionRequest,
    CompletionReport,
    ControllerStats,
    DocumentOrder,
    InstanceLoad,
    PlanOutcome,
    PrefillPlan,
    SpeculationDecision,
)
from protocol.tiers import Tier

_AT_ONCE = 500
"""Nodes that are recollected without a pause: about a millisecond's worth."""


class Controller:
    """Leases plans over one knowledge tree; implements ``protocol.parts.Controller``.

    Of its instances it knows what room they have (``capacities``, in whole pages of ``page_tokens`` tokens), what
    prefills and loads cost there, what one ``step`` of theirs computes, and the ``fingerprint`` of their KV, which
    becomes part of every node's key. The pages of host memory are handed out under stamps from ``first_stamp`` on.
    ``executor`` carry out what no plan takes along; without them it waits for the next plan.

    ``clock`` gives seconds on any monotonic scale, ``wall_clock`` those since the epoch. Belongs to one event loop.
    """

    def __init__(
        self,
        settings: ControllerSettings,
        instances: Sequence[str],
        clock: Callable[[], float],
        costs: Costs,
        capacities: Capacities,
        page_tokens: int = 1,
        fingerprint: str = "",
        first_stamp: int = 1,
        executor: Executor | None = None,
        step: StepBudget | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._clock = clock
        # What is kept of a former controller until the tiers have been asked.
        self._recalled: Mapping[str, NodeRecord] = {}
        # Names the memory and the disk that instances share.
        self.shared = ""
        # What plans say of the engines that they are made for; whoever watches those keeps this true.
        self.boots: dict[str, str] = {}
        self._prefix = f"{fingerprint}/" if fingerprint else ""
        lookahead = Lookahead()
        self._tree = KnowledgeTree(
            create_policy(settings.policy, lookahead),
            capacities,
            instances,
            costs.prefill_seconds,
            settings.frequency_window_s,
            load_seconds=costs.load_seconds,
            page_tokens=page_tokens,
            arena=PageAllocator(capacities.host // page_tokens, page_tokens, first_stamp),
            write_through=settings.swap is Swap.WRITE_THROUGH,
        )
        self._scheduler = Scheduler(
            self._tree, lookahead, settings.max_running, settings.max_queued, settings.reorder_window, step
        )
        self._leases = Leases(self._scheduler, clock, settings.lease_s, settings.first_token_s)
        self._deliveries = Deliveries(self._tree, executor)
        # The configuration has no query run for longer than a lease.
        self._tombstones = Tombstones(wall_clock, settings.lease_s)
        self._deletion = Deletion(
            self._scheduler, self._leases, self._deliveries, self._tombstones, settings.delete_timeout_s
        )
        self._speculations = Speculations(self._scheduler.speculative)
        self._prefetcher = Prefetcher(
            self._scheduler,
            self._leases,
            executor,
            settings.prepare_after_s,
            self._outdated,
            self._prefetch_plan,
            self._deliveries,
        )
        # Every namespace that had a plan or was restored: an engine's own cache may have something of it.
        self._namespaces: set[str] = set()
        self._admitted = self._rejected = 0
        self._ended = dict.fromkeys(PlanOutcome, 0)
        self._cached_tokens = self._computed_tokens = 0
        self._planned_tokens = 0
        self._planned_from = dict.fromkeys(Tier, 0)

    # The path of a query

    async def on_candidates(self, query_id: str, documents: Sequence[str], final: bool) -> SpeculationDecision:
        """Decide about generating on provisional documents, content keys in prompt order, after one stage.

        KEEP on final ones confirms the query's speculation: from then on its plan is like any other.
        """
        if not self._settings.speculation:
            return SpeculationDecision.WAIT
        return self._speculations.decide(query_id, documents, final)

    async def speculate(self, query_id: str, documents: Sequence[str], request: AdmissionRequest) -> PrefillPlan | None:
        """A plan to generate on a query's provisional documents; None where there is no room, or nothing may be kept.

        ``request`` is under an id of its own, which the plan is completed under; its prompt has as many of the
        documents as fit. Raises InvalidRequest for an id that waits or runs already.
        """
        if not self._settings.speculation or self._outdated(request):
            return None
        request = self._in_order(request)
        grant = self._leases.speculate(self._request(request))
        if grant is None:
            return None
        self._speculations.started(query_id, request.query_id, documents)
        plan = self._admitted_plan(request, grant, self._clock(), unshared=False)
        return msgspec.structs.replace(plan, speculative=True)

    async def admit(self, request: AdmissionRequest) -> PrefillPlan:
        """Wait for the query's turn and lease it a plan; cancelling gives the turn up.

        Raises Overloaded at once when no more may wait, InvalidRequest for a query that waits or runs already, and
        EngineDied where there is no instance but those to avoid, or when its instance is lost as its turn comes.
        """
        self.expire_leases()
        self._speculations.end(request.query_id)
        request = self._in_order(request)
        arrived = self._clock()
        unshared = self._outdated(request)
        try:
            # Nothing of what is unshared may be kept, so there is nothing to do ahead.
            with nullcontext() if unshared else self._prefetcher.while_waiting(request):
                grant = await self._leases.admit(self._request(request, unshared))
        except Overloaded:
            self._rejected += 1
            raise
        return self._admitted_plan(request, grant, arrived, unshared)

    async def prefilled(self, query_id: str, lost: Sequence[LostCopy] = ()) -> None:
        """Hear that a plan has its first token: what it computed serves others from now on, and others may start.

        ``lost`` are copies of any nodes. Raises UnknownPlan for a query that holds no plan, and UnknownNode for a key
        that is none; then nothing has changed.
        """
        self._leases.prefilled(query_id, lost_copies(lost))
        self._prefetcher.look()
        self._deliveries.start()

    async def complete(self, report: CompletionReport) -> None:
        """Release the query's plan or its wait, and learn what became true of it.

        Raises UnknownPlan for a query that has neither, so for a plan completed twice, and UnknownNode for the key of a
        lost copy that is none; then no lease and nothing in the tree has changed. Speculation on the query ends in any
        case; its plan is completed on its own. The orders of a plan that ended before its first token are carried out
        all the same, by others.
        """
        self._speculations.end(report.query_id)
        prefilled = report.cached_tokens + report.computed_tokens > 0
        self._leases.complete(report.query_id, prefilled, lost_copies(report.lost))
        self._prefetcher.look()
        self._deliveries.start()
        self._ended[report.outcome] += 1
        self._cached_tokens += report.cached_tokens
        self._computed_tokens += report.computed_tokens

    # What operators and idle time do

    async def warm(self, request: AdmissionRequest) -> PrefillPlan | None:
        """A plan that brings the request's documents into the tree, completed like any other.

        None unless an instance is idle and something is missing: warming up must never make a query wait. Nor for what
        was deleted since it was found.
        """
        self.expire_leases()
        if self._outdated(request):
            return None
        request = self._in_order(request)
        asked = self._request(request)
        idle = self._scheduler.instances.idle
        if not idle or self._scheduler.is_cached(asked):
            return None
        return self._admitted_plan(request, self._leases.take(asked, among=idle), self._clock(), unshared=False)

    async def pin(self, path: CachePath, pinned: bool = True) -> None:
        """Keep a path of the tree whatever comes, or no longer. Raises UnknownNode or PinRefused."""
        if pinned:
            self._tree.pin(self._prefix + path.namespace, path.contents)
        else:
            self._tree.unpin(self._prefix + path.namespace, path.contents)

    async def delete_document(self, deletion: DocumentDeletion) -> int:
        """Drop a document's chunks from every tier, with all that stands behind them; how many nodes went.

        They are not found from the first moment. Queries that found them before and come later leave nothing, and are
        not waited for. Returns when those that have them now have ended and nothing is left; without executor, at once.
        Where no namespace is named, engines forget them in every one that this controller has heard of. Raises
        DeadlineExceeded after ``delete_timeout_s``, and Unavailable where an instance cannot be told: then a second
        call goes on.
        """
        namespace = None if deletion.namespace is None else self._prefix + deletion.namespace
        within = sorted(self._namespaces) if deletion.namespace is None else [deletion.namespace]
        forget = [(plain, content) for plain in within for content in deletion.contents]
        return await self._deletion.delete(deletion.contents, namespace, forget)

    async def clear(self) -> int:
        """Drop everything, what plans use as they end; how many nodes went. Raises Unavailable as deletion does."""
        gone = self._tree.clear()
        await self._deliveries.everywhere(everything=True)
        return gone

    async def persist(self) -> None:
        """Have on disk what is in any tier, as far as there is room. Raises Unavailable as deletion does."""
        self._tree.persist()
        await self._deliveries.everywhere()

    def recall(self, snapshot: Snapshot) -> None:
        """Take over what a former controller remembered, before anything is restored."""
        self._tree.grants.tick = max(self._tree.grants.tick, snapshot.tick)
        self._recalled = snapshot.nodes
        self._tombstones.recall((deleted.content, deleted.namespace, deleted.at) for deleted in snapshot.deletions)

    async def snapshot(self) -> Snapshot:
        """What the next controller should know if this one is lost. Takes pauses, so that queries need not wait."""
        tick = self._tree.grants.tick
        deletions = tuple(DeletionRecord(*each) for each in self._tombstones.deletions())
        nodes: dict[str, NodeRecord] = {}
        there = list(self._tree.registry.nodes.values())
        for begin in range(0, len(there), _AT_ONCE):
            for node in there[begin : begin + _AT_ONCE]:
                if not node.detached:
                    nodes[node.key.hex()] = record_of(node, self.shared)
            await asyncio.sleep(0)
        return Snapshot(tick, nodes, deletions)

    async def restore(self, reports: Sequence[ResidencyReport]) -> RestoreResult:
        """Rebuild the tree from what tiers hold by their own account. Raises UnknownInstance or InvalidRequest."""
        result = self._restore(reports)
        self._deliveries.start()
        return result

    async def add_instance(
        self, instance: str, boot: str, reports: Sequence[ResidencyReport], isolated: bool = False
    ) -> RestoreResult:
        """Give requests to one more instance, whose engine is in the life ``boot`` and whose tiers hold this.

        An ``isolated`` one reaches none of the shared tiers, and reports none. Raises what ``restore`` does; then the
        instance is there, empty.
        """
        self.boots[instance] = boot
        self._scheduler.lifecycle.add(instance, isolated)
        try:
            return self._restore(reports)
        finally:
            self._leases.move_on()
            self._deliveries.start()

    async def retire_instance(self, instance: str) -> None:
        """Give an instance nothing more, and forget it when what runs there has ended.

        Who waits for it waits for another from now on, or for the next to come. Raises UnknownInstance.
        """
        self._scheduler.lifecycle.retire(instance)
        self._leases.move_on()
        self._forget_ended()

    async def reinstate_instance(self, instance: str) -> None:
        """Give an instance requests again that was retired and has not ended. Raises UnknownInstance."""
        self._leases.reinstate(instance)
        self._leases.move_on()
        self._deliveries.start()

    async def lose_shared(self) -> None:
        """Hear that nobody is left who reaches the shared tiers: the next instance brings its own."""
        self._tree.lose_shared()
        self._scheduler.reprioritise()

    async def restart_instance(
        self, instance: str, reports: Sequence[ResidencyReport], isolated: bool = False
    ) -> RestoreResult:
        """Hear that an instance's engine came up anew, and what its tiers hold: its GPU nothing but what is reported.

        The plans that ran there have failed, and their leases end; queries that wait go on waiting. It is given
        requests even if it was retired. Raises UnknownInstance, and InvalidRequest as ``restore``, when the instance is
        new and empty all the same.
        """
        failed, waiting = self._leases.restart(instance, isolated)
        self._ended[PlanOutcome.FAILED] += failed
        try:
            return self._restore(reports)
        finally:
            self._leases.wait_again(waiting)
            self._leases.move_on()
            self._deliveries.start()

    async def stats(self) -> ControllerStats:
        """Counters and gauges."""
        return ControllerStats(
            policy=self._settings.policy,
            running=self._scheduler.instances.running,
            queued=self._scheduler.instances.queued,
            admitted=self._admitted,
            rejected=self._rejected,
            completed=self._ended[PlanOutcome.COMPLETED],
            failed=self._ended[PlanOutcome.FAILED],
            cancelled=self._ended[PlanOutcome.CANCELLED] + self._leases.cancelled,
            expired=self._leases.expired,
            cached_tokens=self._cached_tokens,
            computed_tokens=self._computed_tokens,
            planned_cached_tokens=sum(self._planned_from.values()),
            planned_tokens=self._planned_tokens,
            planned_from=dict(self._planned_from),
            largest_overtake=self._scheduler.instances.largest_overtake,
            tiers=tier_stats(self._tree),
            prepared_tokens=self._prefetcher.prepared_tokens,
            instances=tuple(InstanceLoad(*load, load[0] in self.retired) for load in self._scheduler.instances.loads()),
        )

    async def tree(self, depth: int, limit: int) -> TreeView:
        """The knowledge tree down to ``depth`` documents, ``limit`` nodes of it. Raises InvalidRequest."""
        for name, number in (("depth", depth), ("limit", limit)):
            if number < 0:
                raise InvalidRequest(f"a {name} is not negative: {number}", param=name)
        view = tree_view(self._tree, depth, limit)
        plain = {namespace.removeprefix(self._prefix): nodes for namespace, nodes in view.namespaces.items()}
        return msgspec.structs.replace(view, namespaces=plain)

    async def ready(self) -> None:
        """Return at once: a controller that is there can admit."""

    @property
    def retired(self) -> Set[str]:
        """Instances that are given nothing more and have not ended."""
        return self._tree.tiers.retired

    @property
    def sharing(self) -> Set[str]:
        """Instances that are given requests and reach the shared tiers."""
        return self._scheduler.instances.sharing

    @property
    def idle(self) -> bool:
        """Whether no query runs or waits."""
        return not self._scheduler.instances.running and not self._scheduler.instances.queued

    def expire_leases(self) -> None:
        """Release what was leased too long ago, and try again to deliver orders that wait."""
        self._leases.expire()
        self._forget_ended()
        self._speculations.sweep()
        self._prefetcher.look()
        self._deliveries.start()

    def check_integrity(self) -> None:
        """Assert that leases, turns, caches and the tree agree."""
        check_integrity(self._tree)
        self._scheduler.check_integrity()
        self._leases.check_integrity()

    def _forget_ended(self) -> None:
        for instance in self._scheduler.lifecycle.ended():
            self._scheduler.lifecycle.remove(instance)
            self.boots.pop(instance, None)

    def _request(self, admission: AdmissionRequest, unshared: bool = False) -> Request:
        self._namespaces.add(admission.namespace)
        namespace = self._prefix + admission.namespace
        cached = self._settings.cached_documents
        request = request_of(admission.query_id, namespace, admission.prompt, unshared, cached)
        return request._replace(avoid=admission.avoid)

    def _in_order(self, admission: AdmissionRequest) -> AdmissionRequest:
        """The request with its documents in the order that it asks for, as the tree is now."""
        if admission.order is DocumentOrder.RETRIEVAL:
            return admission
        root = self._tree.registry.roots.get(self._prefix + admission.namespace)
        prompt = reordered(admission.prompt, order_by_name(admission.order), root)
        return msgspec.structs.replace(admission, prompt=prompt)

    def _outdated(self, admission: AdmissionRequest) -> bool:
        contents = [segment.key for segment in admission.prompt.prefix]
        return self._tombstones.any(contents, self._prefix + admission.namespace, admission.searched_at)

    def _restore(self, reports: Sequence[ResidencyReport]) -> RestoreResult:
        inside = []
        for report in reports:
            self._namespaces.update(held.namespace for held in report.nodes)
            inside.append(report.within(self._prefix))
        result = restore(self._tree, inside, self._recalled)
        self._pin_again()
        self._scheduler.reprioritise()
        return result

    def _pin_again(self) -> None:
        """Pin what a former controller had pinned, as far as it is there; what is not is not pinned any more."""
        for record in self._recalled.values():
            for _ in range(record.pinned):
                with suppress(UnknownNode, PinRefused):
                    self._tree.pin(record.namespace, record.path)
        self._recalled = {}

    def _admitted_plan(self, request: AdmissionRequest, grant: Grant, arrived: float, unshared: bool) -> PrefillPlan:
        self._admitted += 1
        for step in grant.documents:
            self._planned_tokens += step.tokens
            if step.source is not None:
                self._planned_from[step.source] += step.tokens
        plan = self._plan(request, grant)
        queued_ms = (self._clock() - arrived) * 1000
        return msgspec.structs.replace(plan, queued_ms=queued_ms, unshared=unshared, overtaken=grant.overtaken)

    def _prefetch_plan(self, request: AdmissionRequest, grant: Grant) -> PrefillPlan:
        return msgspec.structs.replace(self._plan(request, grant), speculative=True)

    def _plan(self, request: AdmissionRequest, grant: Grant) -> PrefillPlan:
        # What other instances are to do, and this plan does not take along.
        self._deliveries.start()
        return PrefillPlan(
            query_id=grant.query_id,
            instance=grant.instance,
            namespace=request.namespace,
            prompt=request.prompt,
            nodes=planned_nodes(grant),
            moves=tuple(grant.moves),
            ends=tuple(grant.ends),
            spare=spare_keys(self._tree, grant.instance),
            boot=self.boots.get(grant.instance, ""),
        )
