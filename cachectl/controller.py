"""The controller's public face: typed messages in, decisions out, leases kept.

on_candidates ─► speculation        admit ─► Scheduler ─► Grant ─► PrefillPlan ─► complete
"""

import asyncio
from collections.abc import Callable, Sequence

from cachectl import speculation
from cachectl.grant import Grant, PathDocument
from cachectl.integrity import check_integrity
from cachectl.lookahead import Lookahead
from cachectl.placement import Capacities
from cachectl.policies import create_policy
from cachectl.restore import restore
from cachectl.scheduler import Request, Scheduler
from cachectl.settings import ControllerSettings
from cachectl.tree import KnowledgeTree
from cachectl.view import tier_stats, tree_view
from protocol.cache import CachePath, DocumentDeletion, RestoreResult, TreeView
from protocol.errors import InvalidRequest, Overloaded, UnknownNode
from protocol.kv import LostCopy, ResidencyReport
from protocol.plans import (
    AdmissionRequest,
    CompletionReport,
    ControllerStats,
    PlannedNode,
    PlanOutcome,
    PrefillPlan,
    SpeculationDecision,
)
from protocol.prompts import SegmentKind
from protocol.retrieval import CandidateSet
from protocol.tiers import Tier


class Controller:
    """Leases plans over one knowledge tree; implements ``protocol.parts.Controller``.

    ``clock`` gives seconds on any monotonic scale, ``cost(cached, new)`` the seconds of a prefill of so many tokens. A
    lease ends with ``complete``, or ``lease_s`` after it was granted when its holder was lost; never twice. Belongs to
    one event loop.
    """

    def __init__(
        self,
        settings: ControllerSettings,
        instances: Sequence[str],
        clock: Callable[[], float],
        cost: Callable[[int, int], float],
    ) -> None:
        self._settings = settings
        self._clock = clock
        lookahead = Lookahead()
        self._tree = KnowledgeTree(
            create_policy(settings.policy, lookahead),
            Capacities(settings.gpu_tokens, settings.host_tokens, settings.disk_tokens),
            instances,
            cost,
            settings.frequency_window_s,
        )
        self._scheduler = Scheduler(
            self._tree, lookahead, settings.max_running, settings.max_queued, settings.reorder_window
        )
        self._turns: dict[str, asyncio.Future[Grant]] = {}
        self._deadlines: dict[str, float] = {}
        # What each query's speculation runs on, as far as decisions went, and when its caller is taken for lost.
        self._speculating: dict[str, tuple[tuple[str, ...], float]] = {}
        self._admitted = self._rejected = self._expired = 0
        self._ended = dict.fromkeys(PlanOutcome, 0)
        self._cached_tokens = self._computed_tokens = 0
        self._planned_cached_tokens = self._planned_tokens = 0

    # The path of a query

    async def on_candidates(self, query_id: str, candidates: CandidateSet) -> SpeculationDecision:
        """Decide about generating on provisional documents, and remember the decision until the query is admitted."""
        running, _ = self._speculating.get(query_id, (None, 0.0))
        documents = tuple(chunk.content_hash for chunk in candidates.docs)
        others = len(self._speculating) - (query_id in self._speculating)
        decision = speculation.decide(
            documents,
            running,
            pool_size=self._scheduler.running + self._scheduler.queued + others,
            max_prefill_bs=self._settings.max_prefill_bs,
            final=candidates.final,
        )
        if decision is SpeculationDecision.START:
            self._speculating[query_id] = documents, self._clock() + self._settings.lease_s
        elif decision is SpeculationDecision.DROP:
            del self._speculating[query_id]
        return decision

    async def admit(self, request: AdmissionRequest) -> PrefillPlan:
        """Wait for the query's turn and lease it a plan; cancelling gives the turn up.

        Raises Overloaded at once when no more may wait, and InvalidRequest for a query that waits or runs already.
        """
        self.expire_leases()
        self._speculating.pop(request.query_id, None)
        arrived = self._clock()
        try:
            grant = self._scheduler.submit(_request(request), arrived)
        except Overloaded:
            self._rejected += 1
            raise
        if grant is None:
            grant = await self._turn(request.query_id)
        return self._plan(request, grant, arrived)

    async def complete(self, report: CompletionReport) -> None:
        """Release the query's plan or its wait, and learn what became true of it.

        Raises UnknownPlan for a query that has neither, so for a plan completed twice, and UnknownNode for a lost copy
        that is not of this plan; then no lease and nothing in the tree has changed. Speculation on the query ends in
        any case.
        """
        self._speculating.pop(report.query_id, None)
        prefilled = report.cached_tokens + report.computed_tokens > 0
        self._release(report.query_id, prefilled, [_lost(copy) for copy in report.lost])
        self._ended[report.outcome] += 1
        self._cached_tokens += report.cached_tokens
        self._computed_tokens += report.computed_tokens

    # What operators and idle time do

    async def warm(self, request: AdmissionRequest) -> PrefillPlan | None:
        """A plan that brings the request's documents into the tree, completed like any other.

        None unless an instance is idle and something is missing: warming up must never make a query wait.
        """
        self.expire_leases()
        asked = _request(request)
        idle = self._scheduler.idle
        if not idle or self._scheduler.cached(asked):
            return None
        now = self._clock()
        grant = self._scheduler.submit(asked, now, among=idle)
        assert grant is not None, "an idle instance made a request wait"
        return self._plan(request, grant, now)

    async def pin(self, path: CachePath, pinned: bool = True) -> None:
        """Keep a path of the tree whatever comes, or no longer. Raises UnknownNode or PinRefused."""
        if pinned:
            self._tree.pin(path.namespace, path.contents)
        else:
            self._tree.unpin(path.namespace, path.contents)

    async def delete_document(self, deletion: DocumentDeletion) -> int:
        """Drop a document's chunks from every tier, with all that stands behind them; how many nodes went."""
        return sum(self._tree.delete(content, deletion.namespace) for content in deletion.contents)

    async def clear(self) -> int:
        """Drop everything; how many nodes went."""
        return self._tree.clear()

    async def restore(self, reports: Sequence[ResidencyReport]) -> RestoreResult:
        """Rebuild the tree from what tiers hold by their own account. Raises UnknownInstance or InvalidRequest."""
        result = restore(self._tree, reports)
        self._scheduler.reprioritise()
        return result

    async def stats(self) -> ControllerStats:
        """Counters and gauges."""
        return ControllerStats(
            policy=self._settings.policy,
            running=self._scheduler.running,
            queued=self._scheduler.queued,
            admitted=self._admitted,
            rejected=self._rejected,
            completed=self._ended[PlanOutcome.COMPLETED],
            failed=self._ended[PlanOutcome.FAILED],
            cancelled=self._ended[PlanOutcome.CANCELLED],
            expired=self._expired,
            cached_tokens=self._cached_tokens,
            computed_tokens=self._computed_tokens,
            planned_cached_tokens=self._planned_cached_tokens,
            planned_tokens=self._planned_tokens,
            largest_overtake=self._scheduler.largest_overtake,
            tiers=tier_stats(self._tree),
        )

    async def tree(self, depth: int) -> TreeView:
        """The knowledge tree down to ``depth`` documents. Raises InvalidRequest for a negative depth."""
        if depth < 0:
            raise InvalidRequest(f"a depth is not negative: {depth}", param="depth")
        return tree_view(self._tree, depth)

    async def ready(self) -> None:
        """Return at once: a controller that is there can admit."""

    @property
    def idle(self) -> bool:
        """Whether no query runs or waits."""
        return not self._scheduler.running and not self._scheduler.queued

    # Leases

    def expire_leases(self) -> None:
        """Release what was leased too long ago: its holder is gone, or it would have completed."""
        now = self._clock()
        for query_id in [query_id for query_id, deadline in self._deadlines.items() if deadline <= now]:
            self._release(query_id, kept=False)
            self._expired += 1
        for query_id in [query_id for query_id, (_, deadline) in self._speculating.items() if deadline <= now]:
            del self._speculating[query_id]

    def check_integrity(self) -> None:
        """Assert that leases, turns, places and the tree agree."""
        check_integrity(self._tree)
        self._scheduler.check_integrity()
        assert self._deadlines.keys() <= self._tree.grants.keys()
        assert len(self._turns) == self._scheduler.queued
        assert not any(turn.done() for turn in self._turns.values())

    async def _turn(self, query_id: str) -> Grant:
        turn: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        self._turns[query_id] = turn
        try:
            # Shielded, so that a turn which comes between the cancelling and this task's hearing of it can be given.
            grant = await asyncio.shield(turn)
        except asyncio.CancelledError:
            # A wait or a turn that was ended from outside is released already, and the query may have come again since.
            if not turn.cancelled() and not (turn.done() and turn.result().settled):
                self._release(query_id, kept=False)
            raise
        if grant.settled:
            # Completed between its turn and this task's hearing of it.
            raise asyncio.CancelledError
        return grant

    def _release(self, query_id: str, kept: bool, lost: Sequence[tuple[bytes, Tier]] = ()) -> None:
        now = self._clock()
        granted = self._scheduler.complete(query_id, now, kept, lost)
        self._deadlines.pop(query_id, None)
        turn = self._turns.pop(query_id, None)
        if turn is not None:
            turn.cancel()
        for grant in granted:
            self._turns.pop(grant.query_id).set_result(grant)
            self._deadlines[grant.query_id] = now + self._settings.lease_s

    def _plan(self, request: AdmissionRequest, grant: Grant, arrived: float) -> PrefillPlan:
        granted = self._clock()
        self._deadlines[grant.query_id] = granted + self._settings.lease_s
        self._admitted += 1
        for step in grant.steps:
            self._planned_tokens += step.tokens
            self._planned_cached_tokens += step.tokens if step.source is not None else 0
        return PrefillPlan(
            query_id=request.query_id,
            instance=grant.instance,
            namespace=request.namespace,
            prompt=request.prompt,
            queued_ms=(granted - arrived) * 1000,
            nodes=tuple(PlannedNode(step.key.hex(), step.tokens, step.source, step.kept) for step in grant.steps),
            moves=tuple(grant.moves),
        )


def _request(admission: AdmissionRequest) -> Request:
    """The segments in front of the first question are the path; what stands behind is computed anew each time."""
    documents: list[PathDocument] = []
    question_tokens = 0
    pinned = 0
    for segment in admission.prompt.segments:
        tokens = len(segment.token_ids)
        if question_tokens or segment.kind is SegmentKind.QUESTION:
            question_tokens += tokens
        elif tokens:
            pinned += segment.kind is SegmentKind.SYSTEM and pinned == len(documents)
            documents.append(PathDocument(segment.key, tokens))
    return Request(admission.query_id, admission.namespace, tuple(documents), question_tokens, pinned)


def _lost(copy: LostCopy) -> tuple[bytes, Tier]:
    try:
        return bytes.fromhex(copy.node), copy.tier
    except ValueError:
        raise UnknownNode(f"{copy.node!r} is not the key of a node") from None
