"""The gateway's own metrics, in base units, without labels for tenants or documents. See docs/metrics.md."""

from collections.abc import Sized
from functools import partial
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from gateway.metrics.activity import Activity
from gateway.query.transcript import Transcript
from gateway.readiness import Readiness
from gateway.wire.errors import http_error
from gateway.wire.reply import RewriteFailure, Rewriting
from gateway.wire.reuse import Approximation, FactsAttention, facts_attention, fallback_of, found_in
from protocol.errors import InternalError, Overloaded, RagtreeError
from protocol.generation import PrefillResult
from protocol.plans import Fallback, PrefillPlan
from protocol.retrieval import CandidateSet, RerankFailure
from protocol.tiers import Tier

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_STAGE_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_TOKEN_SECONDS = (0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
_OUTCOMES = ("completed", "refused", "failed", "cancelled")
_OVERTAKES = (0, 1, 2, 4, 8, 16, 32, 64)


class GatewayMetrics:
    """The gateway's Prometheus metrics, in the caller's registry, so that one process can hold two gateways.

    ``activity`` gets the figures of the last minutes; by default, it is a new one.
    """

    def __init__(self, registry: CollectorRegistry, activity: Activity | None = None) -> None:
        self.registry = registry
        self.activity = activity or Activity()
        histogram, counter = partial(Histogram, registry=registry), partial(Counter, registry=registry)
        self._first_token = histogram(
            "ragtree_time_to_first_token_seconds", "Time from a query's arrival to its first token.", buckets=_SECONDS
        )
        self._duration = histogram(
            "ragtree_request_duration_seconds",
            "Time from a query's arrival to its end, for every outcome.",
            buckets=_SECONDS,
        )
        self._output_token = histogram(
            "ragtree_time_per_output_token_seconds",
            "Mean time between the tokens of an answer, from the first token on.",
            buckets=_TOKEN_SECONDS,
        )
        self._longest_gap = histogram(
            "ragtree_longest_token_gap_seconds", "Longest time between two tokens of an answer.", buckets=_TOKEN_SECONDS
        )
        self._completion_tokens = counter(
            "ragtree_completion_tokens_total", "Tokens generated for queries, including those that ended early."
        )
        self._queries = counter(
            "ragtree_queries_total",
            "Queries by outcome: completed, refused, failed, or cancelled with their request.",
            ["outcome"],
        )
        for outcome in _OUTCOMES:
            # Present from the start: the rate of a missing series is not 0.
            self._queries.labels(outcome)
        self._failures = counter("ragtree_query_failures_total", "Queries that failed, by error code.", ["code"])
        self._stage = histogram(
            "ragtree_retrieval_stage_seconds",
            "Time of one stage of a search. The stage of reranking is named rerank.",
            ["stage"],
            buckets=_STAGE_SECONDS,
        )
        self._rewrites = counter(
            "ragtree_follow_up_rewrites_total",
            "Follow-ups that the model was to rewrite: done, or why they were searched as they are: timeout, failed, "
            "empty or too_long.",
            ["outcome"],
        )
        for outcome in ("done", *RewriteFailure):
            self._rewrites.labels(outcome)
        self.partial = counter(
            "ragtree_retrieval_partial_total", "Searches that ended without the results of a lost or slow shard."
        )
        self.deletions_given_up = counter(
            "ragtree_deletions_given_up_total", "Deleted contents whose KV could not be deleted in three attempts."
        )
        self._rerank_failures = counter(
            "ragtree_rerank_failures_total",
            "Searches whose results were not reranked although that was asked for, by reason.",
            ["reason"],
        )
        for failure in RerankFailure:
            self._rerank_failures.labels(failure.value)
        self._queue_wait = histogram(
            "ragtree_queue_wait_seconds", "Time a query waited for admission.", buckets=_SECONDS
        )
        self._overtakes = histogram(
            "ragtree_queue_overtakes",
            "How often younger queries overtook a query before its admission.",
            buckets=_OVERTAKES,
        )
        self.non_overlapped = histogram(
            "ragtree_retrieval_non_overlapped_seconds",
            "Part of a search during which nothing was computed that the answer uses.",
            buckets=_STAGE_SECONDS,
        )
        self._cache_tokens = counter(
            "ragtree_cache_tokens_total", "Prompt tokens by where their KV came from.", ["source"]
        )
        self._lookups = counter(
            "ragtree_cache_lookups_total",
            "Documents looked up in a tier. Tiers are searched from the fastest to the slowest until a hit.",
            ["tier"],
        )
        self._hits = counter("ragtree_cache_hits_total", "Documents found completely in a tier.", ["tier"])
        self._fallbacks = counter(
            "ragtree_reuse_fallbacks_total",
            "Queries of which nothing was composed although that was asked for, by reason.",
            ["reason"],
        )
        for reason in Fallback:
            self._fallbacks.labels(reason.value)
        self._facts = counter(
            "ragtree_facts_prompts_total",
            "Prompts with facts of a graph, by how they attended to them: self or dependency.",
            ["attention"],
        )
        for attention in get_args(FactsAttention):
            self._facts.labels(attention)
        self.shadows = counter(
            "ragtree_shadow_answers_total",
            "Answers to prompts with composed KV, or with facts in trees (dependency), that were computed again after "
            "a full prefill, by outcome: same, different or failed.",
            ["approximation", "outcome"],
        )
        for approximation in get_args(Approximation):
            for outcome in ("same", "different", "failed"):
                self.shadows.labels(approximation, outcome)
        self.ingested = counter(
            "ragtree_ingest_prefills_total",
            "Chunks of ingested documents prefilled in idle time, after ingestion or by precomputations, by outcome: "
            "computed, present, no_room in the tiers without evicting, or failed.",
            ["outcome"],
        )
        for outcome in ("computed", "present", "no_room", "failed"):
            self.ingested.labels(outcome)
        self.speculation = counter(
            "ragtree_speculation_total",
            "Generations on provisional documents by outcome: confirmed, wrong, gave_way to a request, or abandoned "
            "with their query.",
            ["outcome"],
        )
        self.wasted = counter(
            "ragtree_speculation_wasted_tokens_total", "Prompt tokens computed for generations that were not confirmed."
        )
        self.retried = counter(
            "ragtree_requests_begun_again_total",
            "Queries retried on another instance because theirs was lost before their first token.",
        )
        self._rejected = counter("ragtree_requests_rejected_total", "Requests refused, by error code.", ["reason"])

    def stage(self, found: CandidateSet, seconds: float) -> None:
        """Record one stage of a search."""
        if found.reranking is None:
            self._stage.labels(str(found.stage)).observe(seconds)
            return
        self._stage.labels("rerank").observe(seconds)
        if found.reranking.reason is not None:
            self._rerank_failures.labels(found.reranking.reason.value).inc()

    def rewritten(self, rewriting: Rewriting) -> None:
        """Count a follow-up that was to be rewritten, by the outcome."""
        self._rewrites.labels(rewriting.reason.value if rewriting.reason else rewriting.status).inc()

    def admitted(self, queued_s: float, overtakes: int) -> None:
        """Record a query's admission."""
        self._queue_wait.observe(queued_s)
        self._overtakes.observe(overtakes)

    def prefilled(self, plan: PrefillPlan, prefill: PrefillResult) -> None:
        """Record where a prompt's tokens came from, and the tier lookups and hits of its documents."""
        for tier, tokens in prefill.loaded.items():
            self._cache_tokens.labels(tier.value).inc(tokens)
        for found in found_in(plan, prefill):
            self._looked_up(found)
        self._cache_tokens.labels("composed").inc(prefill.composed_tokens)
        self._cache_tokens.labels("recomputed").inc(prefill.recomputed_tokens)
        self._cache_tokens.labels("computed").inc(max(0, prefill.computed_tokens - prefill.recomputed_tokens))
        fallback = fallback_of(plan, prefill)
        if fallback is not None:
            self._fallbacks.labels(fallback.value).inc()
        attention = facts_attention(plan, prefill)
        if attention is not None:
            self._facts.labels(attention).inc()
        self.activity.prefilled(prefill.prompt_tokens, prefill.cached_tokens)

    def _looked_up(self, found: Tier | None) -> None:
        for tier in Tier:
            self._lookups.labels(tier.value).inc()
            if tier is found:
                self._hits.labels(tier.value).inc()
                return

    def ended(self, transcript: Transcript, error: BaseException | None) -> None:
        """Record the end of a query. ``error`` is what it raised."""
        times = transcript.token_times
        self._duration.observe(transcript.elapsed_s)
        self._completion_tokens.inc(times.tokens)
        self._queries.labels(_outcome(error)).inc()
        if _outcome(error) == "failed":
            self._failures.labels(error.code if isinstance(error, RagtreeError) else InternalError.code).inc()
        if times.first_s is not None:
            self._first_token.observe(times.first_s)
        if times.gaps_s is not None:
            mean_s, longest_s = times.gaps_s
            self._output_token.observe(mean_s)
            self._longest_gap.observe(longest_s)
        self.activity.ended(times.first_s)

    def rejected(self, reason: str) -> None:
        """Count a refused request by its error code."""
        self._rejected.labels(reason).inc()
        self.activity.rejected()


def _outcome(error: BaseException | None) -> str:
    """Outcome of a query that raised ``error``. Closing and cancelling are no failures, nor are refusals."""
    if error is None:
        return "completed"
    if not isinstance(error, Exception):
        return "cancelled"
    refused = isinstance(error, Overloaded) or (isinstance(error, RagtreeError) and http_error(error).status < 500)
    return "refused" if refused else "failed"


class HttpMetrics:
    """HTTP requests, streams and uploads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self._requests = counter(
            "ragtree_http_requests_total",
            "Requests by route and status; `none` if no route matched, or no reply started.",
            ["route", "status"],
        )
        self.streams = Gauge("ragtree_streams_open", "Open streams of server-sent events.", registry=registry)
        self._uploads = counter("ragtree_uploads_total", "Accepted uploads, documents or batches.", ["kind"])
        self._upload_bytes = counter("ragtree_upload_bytes_total", "Bytes of accepted uploads.", ["kind"])

    def served(self, route: str | None, status: int | None) -> None:
        """Count a request by its route's template and its status."""
        self._requests.labels(route or "none", status or "none").inc()

    def uploaded(self, kind: str, size: int) -> None:
        """Count an upload by kind, ``document`` or ``batch``, and its size in bytes."""
        self._uploads.labels(kind).inc()
        self._upload_bytes.labels(kind).inc(size)


def expose_state(registry: CollectorRegistry, runs: Sized, readiness: Readiness, version: str) -> None:
    """Add metrics of the state at each scrape: running queries, the parts' readiness, and the gateway's version."""
    Gauge("ragtree_queries_running", "Running queries.", registry=registry).set_function(lambda: len(runs))
    ready = Gauge(
        "ragtree_part_ready", "1 if a part can serve, as of the last check, else 0.", ["part"], registry=registry
    )
    for part in Readiness.PARTS:
        ready.labels(part).set_function(partial(_is_ready, readiness, part))
    Info("ragtree_build", "The running version.", registry=registry).info({"version": version})


def _is_ready(readiness: Readiness, part: str) -> float:
    return part not in readiness.missing()
