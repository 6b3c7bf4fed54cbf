"""What the gateway counts: names and units as in docs, base units, no tenant or document labels."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from gateway.query.activity import Activity
from gateway.query.hits import found_in
from gateway.query.transcript import Transcript
from gateway.wire.errors import http_error
from protocol.errors import InternalError, Overloaded, RagtreeError
from protocol.generation import PrefillResult
from protocol.plans import PrefillPlan
from protocol.tiers import Tier

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_STAGE_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_TOKEN_SECONDS = (0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
_OUTCOMES = ("completed", "refused", "failed", "cancelled")
_OVERTAKES = (0, 1, 2, 4, 8, 16, 32, 64)


class GatewayMetrics:
    """The gateway's Prometheus metrics in a registry of the caller's, so two gateways in one process do not clash.

    What people look at of the last minutes, ``activity`` hears of too, one of its own by default.
    """

    def __init__(self, registry: CollectorRegistry, activity: Activity | None = None) -> None:
        self.registry = registry
        self.activity = activity or Activity()
        self._first_token = Histogram(
            "ragtree_time_to_first_token_seconds",
            "From a query's arrival to its first generated token.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._duration = Histogram(
            "ragtree_request_duration_seconds",
            "From a query's arrival to its end, however it ended.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._output_token = Histogram(
            "ragtree_time_per_output_token_seconds",
            "Mean time between the tokens of an answer, its first one not counted.",
            buckets=_TOKEN_SECONDS,
            registry=registry,
        )
        self._longest_gap = Histogram(
            "ragtree_longest_token_gap_seconds",
            "The longest time between two tokens of an answer.",
            buckets=_TOKEN_SECONDS,
            registry=registry,
        )
        self._completion_tokens = Counter(
            "ragtree_completion_tokens_total", "Tokens generated for queries, ended early or not.", registry=registry
        )
        self._queries = Counter(
            "ragtree_queries_total",
            "Queries by their end: completed, refused, failed, or cancelled with their request.",
            ["outcome"],
            registry=registry,
        )
        for outcome in _OUTCOMES:
            # There from the start: a rate of what is missing is no rate of 0.
            self._queries.labels(outcome)
        self._failures = Counter(
            "ragtree_query_failures_total", "Queries that failed, by error code.", ["code"], registry=registry
        )
        self._stage = Histogram(
            "ragtree_retrieval_stage_seconds",
            "Time of one stage of a search.",
            ["stage"],
            buckets=_STAGE_SECONDS,
            registry=registry,
        )
        self._partial = Counter(
            "ragtree_retrieval_partial_total",
            "Searches that ended without all that a lost or slow shard has.",
            registry=registry,
        )
        self._queue_wait = Histogram(
            "ragtree_queue_wait_seconds", "Time a query waited for its turn.", buckets=_SECONDS, registry=registry
        )
        self._overtakes = Histogram(
            "ragtree_queue_overtakes",
            "How often a query was overtaken by younger ones before its turn.",
            buckets=_OVERTAKES,
            registry=registry,
        )
        self._non_overlapped = Histogram(
            "ragtree_retrieval_non_overlapped_seconds",
            "The part of a search in which nothing was computed that the answer rests on.",
            buckets=_STAGE_SECONDS,
            registry=registry,
        )
        self._cache_tokens = Counter(
            "ragtree_cache_tokens_total", "Prompt tokens by where their KV came from.", ["source"], registry=registry
        )
        self._lookups = Counter(
            "ragtree_cache_lookups_total",
            "Documents looked for in a tier: in one after the other, the fastest first, until found.",
            ["tier"],
            registry=registry,
        )
        self._hits = Counter(
            "ragtree_cache_hits_total", "Documents found in a tier, whole.", ["tier"], registry=registry
        )
        self._speculation = Counter(
            "ragtree_speculation_total",
            "Generations on provisional documents: confirmed, wrong, gave_way to a request, abandoned with the query.",
            ["outcome"],
            registry=registry,
        )
        self._wasted = Counter(
            "ragtree_speculation_wasted_tokens_total",
            "Prompt tokens computed for generations that were not confirmed.",
            registry=registry,
        )
        self._begun_again = Counter(
            "ragtree_requests_begun_again_total",
            "Queries that went to another instance, the first one being lost before their first token.",
            registry=registry,
        )
        self._rejected = Counter(
            "ragtree_requests_rejected_total", "Requests refused, by error code.", ["reason"], registry=registry
        )

    def stage(self, stage: int, seconds: float) -> None:
        """Record one stage of a search."""
        self._stage.labels(str(stage)).observe(seconds)

    def partial(self) -> None:
        """Count a search that ended without all that some shard has."""
        self._partial.inc()

    def admitted(self, queued_s: float, overtakes: int) -> None:
        """Record a query that left the queue."""
        self._queue_wait.observe(queued_s)
        self._overtakes.observe(overtakes)

    def overlapped(self, left_s: float) -> None:
        """Record how much of a search was not overlapped."""
        self._non_overlapped.observe(left_s)

    def speculated(self, outcome: str) -> None:
        """Count the end of a generation on provisional documents."""
        self._speculation.labels(outcome).inc()

    def wasted(self, tokens: int) -> None:
        """Count prompt tokens computed for generations that were not confirmed."""
        self._wasted.inc(tokens)

    def prefilled(self, plan: PrefillPlan, prefill: PrefillResult) -> None:
        """Record where a prompt's tokens came from, and in which tiers its documents were looked for and found."""
        for tier, tokens in prefill.loaded.items():
            self._cache_tokens.labels(tier.value).inc(tokens)
        for found in found_in(plan, prefill):
            self._looked_up(found)
        computed = prefill.prompt_tokens - prefill.cached_tokens - prefill.composed_tokens
        self._cache_tokens.labels("composed").inc(prefill.composed_tokens)
        self._cache_tokens.labels("computed").inc(max(0, computed))
        self.activity.prefilled(prefill.prompt_tokens, prefill.cached_tokens)

    def _looked_up(self, found: Tier | None) -> None:
        for tier in Tier:
            self._lookups.labels(tier.value).inc()
            if tier is found:
                self._hits.labels(tier.value).inc()
                return

    def ended(self, transcript: Transcript, error: BaseException | None) -> None:
        """Record a query at its end, by what it raised and how far it came."""
        self._duration.observe(transcript.elapsed_s)
        self._completion_tokens.inc(transcript.completion_tokens)
        self._queries.labels(_outcome(error)).inc()
        if _outcome(error) == "failed":
            self._failures.labels(error.code if isinstance(error, RagtreeError) else InternalError.code).inc()
        if transcript.first_token_s is not None:
            self._first_token.observe(transcript.first_token_s)
        if transcript.token_gaps is not None:
            mean_s, longest_s = transcript.token_gaps
            self._output_token.observe(mean_s)
            self._longest_gap.observe(longest_s)
        self.activity.ended(transcript.first_token_s)

    def retried(self) -> None:
        """Count a query that lost its instance before its first token."""
        self._begun_again.inc()

    def rejected(self, reason: str) -> None:
        """Count a refusal under its error code."""
        self._rejected.labels(reason).inc()
        self.activity.rejected()


def _outcome(error: BaseException | None) -> str:
    """How a query ended that raised this: what closes or cancels it is no error, and a refusal no failure."""
    if error is None:
        return "completed"
    if not isinstance(error, Exception):
        return "cancelled"
    refused = isinstance(error, Overloaded) or (isinstance(error, RagtreeError) and http_error(error).status < 500)
    return "refused" if refused else "failed"
