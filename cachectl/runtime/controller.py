"""The controller: typed messages in, decisions and plans out.

on_candidates ─► Speculations ─► speculate        admit ─► Scheduler ─► Grant ─► PrefillPlan ─► prefilled ─► complete
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import msgspec

from cachectl.branches import KeptBranches
from cachectl.policies import create_policy
from cachectl.policies.lookahead import Lookahead
from cachectl.runtime.adapters import Adapters
from cachectl.runtime.composing import Gate, ReuseRule, TreeRule
from cachectl.runtime.deletion import Deletion
from cachectl.runtime.deliveries import Deliveries
from cachectl.runtime.executor import Executor
from cachectl.runtime.instance_registry import InstanceRegistry
from cachectl.runtime.kv_reads import KvReads
from cachectl.runtime.leases import Leases
from cachectl.runtime.messages import Messages, Namespaces, lost_at_peers, lost_copies
from cachectl.runtime.prefetch import Prefetcher
from cachectl.runtime.recovery import Recovery
from cachectl.runtime.statistics import Statistics
from cachectl.runtime.tombstones import Tombstones
from cachectl.scheduling.queue import SLACK
from cachectl.scheduling.scheduler import Scheduler
from cachectl.scheduling.speculation import Speculations
from cachectl.settings import ControllerSettings, Swap
from cachectl.sharding.controller_shard import WHOLE, ControllerShard
from cachectl.tiers.location import KvStorage
from cachectl.tree.grant import Grant
from cachectl.tree.knowledge_tree import FREQUENCY_WINDOW_S, KnowledgeTree
from cachectl.tree.load_or_recompute import TreeCosts
from cachectl.tree.view import tree_view
from protocol.cache import CachePath, DocumentDeletion, TreeView
from protocol.errors import InvalidRequest, Overloaded
from protocol.generation import ComposingInfo, ServedAdapter, StepBudget
from protocol.kv import KvRead, LostCopy
from protocol.plans import (
    AdmissionRequest,
    CompletionReport,
    ControllerStats,
    NotWarmed,
    PrefillPlan,
    Reuse,
    SpeculationDecision,
)
from protocol.tiers import Tier

LEASE_IN_QUERIES = 3
"""How long a plan's lease is, in the times that a query may take. Leases outlive queries.

The controller remembers a deletion for one lease. A query that found the document before the deletion may ask for a
plan as late as its own timeout.
"""


class Engines(NamedTuple):
    """What is known about each engine: what prefills and loads cost, what one step computes, and how it composes KV.

    ``step`` is None if steps are unbounded, ``composing`` if engines cannot compose.
    """

    costs: TreeCosts
    step: StepBudget | None = None
    composing: ComposingInfo | None = None


class Controller:
    """Leases plans over one knowledge tree. Implements ``protocol.parts.Controller``.

    Arguments:
    - ``clock``: seconds on any monotonic scale.
    - ``storage``: what these instances keep KV in.
    - ``executor``: carries out what no plan takes along. Without one, that waits for the next plan.
    - ``shard``: which of several controllers this is.
    - ``gate``: what is known about the quality of composing.
    - ``query_timeout_s``: how long a query may take.

    ``instances`` adds and retires instances, ``adapters`` are what they serve beside the model. ``recovery`` takes
    snapshots and restores the tree. Belongs to one event loop.

    """

    def __init__(
        self,
        settings: ControllerSettings,
        instances: Sequence[str],
        clock: Callable[[], float],
        engines: Engines,
        storage: KvStorage,
        *,
        executor: Executor | None = None,
        shard: ControllerShard = WHOLE,
        gate: Gate = Gate(),  # noqa: B008  # immutable
        query_timeout_s: float = 300.0,
        adapters: Adapters | None = None,
    ) -> None:
        costs, step, composing = engines
        if composing is not None:
            costs = costs._replace(move_s=composing.move_s)
        self._settings = settings
        self._clock = clock
        lookahead = Lookahead()
        self._tree = KnowledgeTree(
            create_policy(settings.policy, lookahead),
            storage,
            instances,
            costs,
            FREQUENCY_WINDOW_S,
            arena=storage.arena(),
            composes=composing is not None and settings.reuse is not Reuse.EXACT,
            write_through=settings.swap is Swap.WRITE_THROUGH,
        )
        branch_tokens = composing.branch_tokens if composing is not None else 0
        branches = KeptBranches(
            lambda: create_policy(settings.policy, lookahead), shard.share(branch_tokens), costs.prefill
        )
        self._scheduler = Scheduler(
            self._tree,
            lookahead,
            settings.max_running,
            settings.max_queued,
            settings.reorder_window,
            step,
            SLACK,
            shard.rank,
            branches,
        )
        self._speculations = Speculations(self._scheduler.speculative)
        self._leases = Leases(self._scheduler, clock, LEASE_IN_QUERIES * query_timeout_s, settings.pace.first_token_s)
        self._deliveries = Deliveries(self._scheduler, executor)
        tombstones = Tombstones()
        self._namespaces = Namespaces(storage.fingerprint)
        self._deletion = Deletion(
            self._scheduler,
            self._leases,
            self._deliveries,
            tombstones,
            self._namespaces,
            settings.pace.delete_timeout_s,
        )
        self.adapters = adapters or Adapters()
        self.recovery = Recovery(self._scheduler, tombstones, self._namespaces, self._deliveries, self.adapters, shard)
        self._kv_reads = KvReads(self._tree, clock)
        self.instances = InstanceRegistry(
            self._scheduler, self._leases, self.recovery, self._deliveries, self._kv_reads
        )
        reuse = ReuseRule(
            settings.reuse,
            settings.recompute_share,
            settings.recompute_method,
            gate,
            composable=composing is not None and settings.recompute_method in composing.methods,
        )
        trees = TreeRule(
            settings.graph_attention,
            gate,
            possible=composing is not None and not composing.no_trees,
        )
        self._messages = Messages(
            self._tree,
            self._namespaces,
            tombstones,
            self.instances.boots,
            settings.document_score_gap,
            reuse,
            trees,
        )
        self._prefetcher = Prefetcher(
            self._scheduler,
            self._leases,
            self._deliveries,
            self._messages,
            executor,
            self._kv_reads,
            settings.prepare_after_s,
        )
        self._statistics = Statistics(
            settings.policy, self._scheduler, self._leases, self.instances, self._prefetcher, self._kv_reads
        )

    # The path of a query

    async def on_candidates(self, query_id: str, documents: Sequence[str], final: bool) -> SpeculationDecision:
        """Decide about generating on what a stage of the search has found. A confirmed plan is like any other."""
        if not self._settings.speculation:
            return SpeculationDecision.WAIT
        return self._speculations.decide(query_id, documents, final)

    async def speculate(self, query_id: str, documents: Sequence[str], request: AdmissionRequest) -> PrefillPlan | None:
        """Lease a plan to generate on provisional documents; None if there is no room, or if nothing may be kept.

        Its prompt has as many of the documents as fit. Raises InvalidRequest for an id that waits or runs already.
        """
        if not self._settings.speculation:
            return None
        request = self._messages.ordered(request)
        if self._messages.outdated(request):
            return None
        grant = self._leases.speculate(self._messages.request(request))
        if grant is None:
            return None
        self._speculations.started(query_id, request.query_id, documents)
        return self._leased(request, grant, speculative=True)

    async def admit(self, request: AdmissionRequest) -> PrefillPlan:
        """Wait for the query's turn and lease it a plan. Cancelling the call gives the turn up.

        Raises Overloaded at once if the queue is full, InvalidRequest for a query that waits or runs already, and
        EngineDied if there is no instance but those to avoid, or if its instance is lost as its turn comes.
        """
        self.expire_leases()
        self._speculations.end(request.query_id)
        request = self._messages.ordered(request)
        arrived = self._clock()
        unshared = self._messages.outdated(request)
        try:
            # Nothing of an unshared prompt may be kept, so there is nothing to prefetch.
            with nullcontext() if unshared else self._prefetcher.while_waiting(request):
                grant = await self._leases.admit(self._messages.request(request, unshared))
        except Overloaded:
            self._statistics.rejected += 1
            raise
        return self._leased(request, grant, queued_ms=(self._clock() - arrived) * 1000, unshared=unshared)

    async def prefilled(self, query_id: str, lost: Sequence[LostCopy] = (), reads: Sequence[KvRead] = ()) -> None:
        """Record that a plan has its first token: others find what it computed from now on, and may start.

        ``lost`` are copies of any nodes, ``reads`` what the plan has read of tiers. Raises UnknownPlan for a query that
        holds no plan, and UnknownNode for a malformed key; then nothing has changed.
        """
        here = lost_copies(lost)
        self._learn(query_id, lost_at_peers(lost), reads)
        self._leases.prefilled(query_id, here)
        self._prefetcher.start()
        self._deliveries.start()

    async def complete(self, report: CompletionReport) -> None:
        """Release the query's plan or its wait, and record the outcome.

        The query's speculation ends in any case; its plan is completed on its own. Moves of a plan that ended before
        its first token become pending again. Other instances find what the plan wrote to shared tiers from now on, if
        the report says that it is written, and else when the instance has said so on request. Raises UnknownPlan for a
        query that has neither plan nor wait, so also for a plan completed twice, and UnknownNode for the malformed key
        of a lost copy; then no lease and nothing in the tree has changed.
        """
        self._speculations.end(report.query_id)
        prefilled = report.cached_tokens + report.computed_tokens + report.composed_tokens > 0
        unwritten = None if report.unwritten is None else lost_copies(report.unwritten)
        here = lost_copies(report.lost)
        self._learn(report.query_id, lost_at_peers(report.lost), report.reads)
        self._leases.complete(report.query_id, prefilled, here, unwritten)
        self._prefetcher.start()
        self._deliveries.start()
        self._statistics.count_completion(report)

    async def lose(self, instance: str, lost: Sequence[LostCopy]) -> None:
        """Record copies that an instance has reported as lost with another shard's plan. Raises UnknownNode."""
        self._tree.grants.lose(instance, lost_copies(lost))
        self._kv_reads.lose(lost_at_peers(lost))
        self._deliveries.start()

    # What operators and idle time do

    async def warm(self, request: AdmissionRequest, evicting: bool = True) -> PrefillPlan | NotWarmed:
        """Lease a plan on an idle instance, so that warming never delays a query."""
        self.expire_leases()
        if self._messages.outdated(request):
            return NotWarmed.OUTDATED
        request = self._messages.ordered(request)
        asked = self._messages.request(request)
        if self._scheduler.is_cached(asked):
            return NotWarmed.CACHED
        idle = self._scheduler.instances.idle
        if not idle:
            return NotWarmed.BUSY
        if not evicting:
            tokens = sum(document.tokens for document in asked.documents)
            idle = [instance for instance in idle if self._tree.tiers.free(instance) >= tokens]
            if not idle:
                return NotWarmed.NO_ROOM
        return self._leased(request, self._leases.admit_at_once(asked, among=idle))

    async def pin(self, path: CachePath, pinned: bool = True) -> None:
        """Pin a path of the tree, or unpin it. Raises UnknownNode or PinRefused."""
        change = self._tree.pin if pinned else self._tree.unpin
        change(self._namespaces.inside(path.namespace), path.contents)

    async def delete_document(self, deletion: DocumentDeletion) -> int:
        """Delete a document's chunks from every tier, as ``Deletion.delete`` says."""
        return await self._deletion.delete(deletion)

    async def load_adapter(self, name: str, source: str) -> str:
        """Have all instances serve an adapter, as ``Adapters.load`` says."""
        return await self.adapters.load(name, source, lambda: self.instances.serving)

    async def unload_adapter(self, name: str) -> None:
        """Have all instances serve an adapter no more, as ``Adapters.unload`` says."""
        await self.adapters.unload(name, lambda: self.instances.serving)

    async def served_adapters(self) -> dict[str, ServedAdapter]:
        """The adapters that all instances serve."""
        return self.adapters.served

    async def clear(self) -> int:
        """Drop everything. KV that plans use is dropped as they end. Returns the number of nodes removed.

        Raises Unavailable if an instance cannot be reached.
        """
        gone = self._tree.clear()
        self._scheduler.branches.clear()
        await self._deliveries.everywhere(everything=True)
        return gone

    async def persist(self) -> None:
        """Copy to disk what any tier holds, as far as there is room. Raises Unavailable as ``clear`` does."""
        self._tree.persist()
        await self._deliveries.everywhere()

    async def stats(self) -> ControllerStats:
        """Counters and gauges."""
        return self._statistics.read()

    async def tree(self, depth: int, limit: int) -> TreeView:
        """The knowledge tree down to ``depth`` documents, at most ``limit`` nodes of it. Raises InvalidRequest."""
        for name, number in (("depth", depth), ("limit", limit)):
            if number < 0:
                raise InvalidRequest(f"{name} must not be negative: {number}", param=name)
        view = tree_view(self._tree, depth, limit)
        plain = {self._namespaces.outside(namespace): nodes for namespace, nodes in view.namespaces.items()}
        return msgspec.structs.replace(view, namespaces=plain)

    async def ready(self) -> None:
        """Return at once: a controller that exists can admit queries."""

    # What its host does

    @property
    def idle(self) -> bool:
        """Whether no query runs or waits."""
        return not self._scheduler.instances.running and not self._scheduler.instances.queued

    def forget_location(self, name: str) -> None:
        """Forget what a location held that has no instance any more."""
        self._scheduler.remove_location(name)

    async def computed_ahead(self) -> None:
        """Wait until no prefill runs that no query waits for."""
        await self._prefetcher.all_ended()

    def expire_leases(self) -> None:
        """End leases that have run out, and retry deliveries and prefetches that wait. Call this regularly."""
        self._leases.expire()
        self.instances.forget_ended()
        self._kv_reads.look()
        self._speculations.sweep()
        self._prefetcher.start()
        self._deliveries.start()

    def _learn(self, query_id: str, lost: Mapping[str, Sequence[tuple[bytes, Tier]]], reads: Sequence[KvRead]) -> None:
        """Learn from what a plan has read, before other requests are planned."""
        grant = self._tree.grants.open.get(query_id)
        if grant is not None:
            self._kv_reads.lose(lost)
            self._kv_reads.record(grant.instance, reads)

    def _leased(
        self,
        request: AdmissionRequest,
        grant: Grant,
        *,
        queued_ms: float = 0.0,
        speculative: bool = False,
        unshared: bool = False,
    ) -> PrefillPlan:
        self._statistics.count_plan(grant)
        # The grant may have left moves pending for other instances.
        self._deliveries.start()
        return self._messages.plan(request, grant, queued_ms=queued_ms, speculative=speculative, unshared=unshared)
