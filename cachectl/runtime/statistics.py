"""The controller's counters and gauges."""

from collections.abc import Iterator

from cachectl.runtime.instance_registry import InstanceRegistry
from cachectl.runtime.kv_reads import KvReads
from cachectl.runtime.leases import Leases
from cachectl.runtime.prefetch import Prefetcher
from cachectl.scheduling.scheduler import Scheduler
from cachectl.tree.grant import Grant
from cachectl.tree.view import tier_stats
from protocol.plans import CompletionReport, ControllerStats, InstanceLoad, PlanOutcome
from protocol.tiers import Tier


class Statistics:
    """Counts plans and reports, and reads the gauges of the other parts. ``policy`` is the replacement policy's name.

    ``rejected`` counts the queries that were refused because the queue was full.
    """

    def __init__(
        self,
        policy: str,
        scheduler: Scheduler,
        leases: Leases,
        instances: InstanceRegistry,
        prefetcher: Prefetcher,
        kv_reads: KvReads,
    ) -> None:
        self._policy = policy
        self._scheduler = scheduler
        self._leases = leases
        self._instances = instances
        self._prefetcher = prefetcher
        self._kv_reads = kv_reads
        self.rejected = 0
        self._admitted = 0
        self._ended = dict.fromkeys(PlanOutcome, 0)
        self._cached_tokens = self._computed_tokens = self._composed_tokens = 0
        self._planned_tokens = 0
        self._planned_from = dict.fromkeys(Tier, 0)

    def count_plan(self, grant: Grant) -> None:
        """Count a plan that was leased, with the tiers that its documents come from."""
        self._admitted += 1
        for document in grant.documents:
            self._planned_tokens += document.tokens
            if document.loaded_from is not None:
                self._planned_from[document.loaded_from] += document.tokens

    def count_completion(self, report: CompletionReport) -> None:
        """Count a report by its outcome and its tokens."""
        self._ended[report.outcome] += 1
        self._cached_tokens += report.cached_tokens
        self._computed_tokens += report.computed_tokens
        self._composed_tokens += report.composed_tokens

    def read(self) -> ControllerStats:
        """All counters and gauges as they are now."""
        return ControllerStats(
            policy=self._policy,
            running=self._scheduler.instances.running,
            queued=self._scheduler.instances.queued,
            admitted=self._admitted,
            rejected=self.rejected,
            completed=self._ended[PlanOutcome.COMPLETED],
            failed=self._ended[PlanOutcome.FAILED] + self._instances.failed,
            cancelled=self._ended[PlanOutcome.CANCELLED] + self._leases.cancelled,
            expired=self._leases.expired,
            cached_tokens=self._cached_tokens,
            computed_tokens=self._computed_tokens,
            composed_tokens=self._composed_tokens,
            planned_cached_tokens=sum(self._planned_from.values()),
            planned_tokens=self._planned_tokens,
            planned_from=dict(self._planned_from),
            largest_overtake=self._scheduler.instances.largest_overtake,
            tiers=tier_stats(self._scheduler.tree),
            prepared_tokens=self._prefetcher.prefetched_tokens,
            generated_tokens=self._prefetcher.generated_tokens,
            peer_tokens=self._kv_reads.tokens,
            peer_failures=self._kv_reads.failures,
            moves_given_up=self._scheduler.tree.tiers.under_way.given_up,
            instances=tuple(self._loads()),
        )

    def _loads(self) -> Iterator[InstanceLoad]:
        tiers = self._scheduler.tree.tiers
        for name, running, queued in self._scheduler.instances.loads():
            refused = name in self._instances.refused
            yield InstanceLoad(name, running, queued, name in tiers.retired, name in tiers.kv_generators, refused)
        # The scheduler knows no instance that was refused at first.
        for name in sorted(self._instances.refused - self._scheduler.instances.states.keys()):
            yield InstanceLoad(name, 0, 0, retired=False, refused=True)
