"""The controller's public face: admission, leases, and the counters that tell what became of them.

With the policy NONE there is no knowledge tree: plans name no cached KV, queries are served as they come, and what the
engine's own prefix cache holds is reported but not steered.
"""

from collections.abc import Callable

from cachectl.queue import AdmissionQueue
from cachectl.settings import ControllerSettings
from protocol.errors import Overloaded
from protocol.plans import (
    AdmissionRequest,
    CompletionReport,
    ControllerStats,
    PlanOutcome,
    PrefillPlan,
    SpeculationDecision,
)
from protocol.retrieval import CandidateSet


class Controller:
    """Leases plans for one instance; implements ``protocol.parts.Controller``.

    ``clock`` gives seconds on any monotonic scale. A lease ends with ``complete``, or ``lease_s`` after it was
    granted when its holder was lost; never twice.
    """

    def __init__(self, settings: ControllerSettings, instance: str, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._instance = instance
        self._clock = clock
        self._queue = AdmissionQueue(settings.max_running, settings.max_queued)
        self._deadlines: dict[str, float] = {}
        self._admitted = self._rejected = self._expired = 0
        self._ended = dict.fromkeys(PlanOutcome, 0)
        self._cached_tokens = self._computed_tokens = 0

    async def on_candidates(self, query_id: str, candidates: CandidateSet) -> SpeculationDecision:  # noqa: ARG002
        """Wait for the final documents: nothing speculative is started."""
        return SpeculationDecision.WAIT

    async def admit(self, request: AdmissionRequest) -> PrefillPlan:
        """Wait for the query's turn and lease it a plan. Raises Overloaded at once when the queue is full."""
        self.expire_leases()
        arrived = self._clock()
        try:
            await self._queue.enter(request.query_id)
        except Overloaded:
            self._rejected += 1
            raise
        granted = self._clock()
        self._deadlines[request.query_id] = granted + self._settings.lease_s
        self._admitted += 1
        return PrefillPlan(
            query_id=request.query_id,
            instance=self._instance,
            namespace=request.namespace,
            prompt=request.prompt,
            queued_ms=(granted - arrived) * 1000,
        )

    async def complete(self, report: CompletionReport) -> None:
        """Release the query's lease or its place in the queue; a second report of one query changes nothing."""
        self._deadlines.pop(report.query_id, None)
        if not self._queue.leave(report.query_id):
            return
        self._ended[report.outcome] += 1
        self._cached_tokens += report.cached_tokens
        self._computed_tokens += report.computed_tokens

    def expire_leases(self) -> None:
        """Release what was leased too long ago: its holder is gone, or it would have completed."""
        now = self._clock()
        for query_id in [query_id for query_id, deadline in self._deadlines.items() if deadline <= now]:
            del self._deadlines[query_id]
            self._queue.leave(query_id)
            self._expired += 1

    async def stats(self) -> ControllerStats:
        """Counters and gauges."""
        return ControllerStats(
            policy=self._settings.policy,
            running=self._queue.running,
            queued=self._queue.queued,
            admitted=self._admitted,
            rejected=self._rejected,
            completed=self._ended[PlanOutcome.COMPLETED],
            failed=self._ended[PlanOutcome.FAILED],
            cancelled=self._ended[PlanOutcome.CANCELLED],
            expired=self._expired,
            cached_tokens=self._cached_tokens,
            computed_tokens=self._computed_tokens,
        )

    async def ready(self) -> None:
        """Return at once: a controller that is there can admit."""

    def check_integrity(self) -> None:
        """Assert that leases and places agree."""
        self._queue.check_integrity()
        assert len(self._deadlines) <= self._queue.running
