"""Compute the figures of a run, or of a part of it, from its records."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from loadtest.reporting.request_records import Outcome, QueryRecord, WriteRecord
from loadtest.settings import LoadSettings

NOT_JUDGED = frozenset({Outcome.DISCONNECTED, Outcome.UNFINISHED})
"""These outcomes say nothing about the stack."""


class Spread(msgspec.Struct, frozen=True):
    """The distribution of measured times in seconds. Percentiles are linearly interpolated."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """Return the distribution of values, or None without values."""
        if not values:
            return None
        p50, p90, p95, p99 = (float(value) for value in np.percentile(values, [50, 90, 95, 99]))
        return cls(len(values), float(np.mean(values)), p50, p90, p95, p99, max(values))


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of queries. Latencies are those of answered queries.

    ``seconds`` is the time from the start to the last end. ``late`` is how late the load test itself sent requests.
    ``good`` counts answers that meet the objectives. ``good_share`` is their share of all arrivals, except disconnected
    and unfinished ones. ``hit_rate`` is the share of prompt tokens that were not computed.
    """

    seconds: float
    arrivals: int
    outcomes: dict[Outcome, int]
    refusals: dict[str, int]
    errors: dict[str, int]
    answered_per_s: float
    output_tokens_per_s: float
    good: int
    good_per_s: float
    good_share: float | None
    hit_rate: float | None
    ttfr: Spread | None
    ttft: Spread | None
    itl: Spread | None
    e2e: Spread | None
    late: Spread | None


class WriteSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of ingested or deleted documents. ``seconds`` counts from when each was due to its response."""

    outcomes: dict[Outcome, int]
    refusals: dict[str, int]
    errors: dict[str, int]
    seconds: Spread | None


def summarize(queries: Sequence[QueryRecord], seconds: float, settings: LoadSettings) -> Summary:
    """Compute the figures of queries that took ``seconds`` in total."""
    answered = [query for query in queries if query.outcome is Outcome.ANSWERED]
    good = sum(keeps_objectives(query, settings) for query in answered)
    judged = sum(query.outcome not in NOT_JUDGED for query in queries)
    return Summary(
        seconds=seconds,
        arrivals=len(queries),
        outcomes=dict(Counter(query.outcome for query in queries)),
        refusals=_reasons(queries, Outcome.REFUSED),
        errors=_reasons(queries, Outcome.FAILED),
        answered_per_s=_per(len(answered), seconds),
        output_tokens_per_s=_per(sum(query.completion_tokens for query in answered), seconds),
        good=good,
        good_per_s=_per(good, seconds),
        good_share=good / judged if judged else None,
        hit_rate=hit_rate(answered),
        ttfr=Spread.of(_known(query.ttfr for query in answered)),
        ttft=Spread.of(_known(query.ttft for query in answered)),
        itl=Spread.of([gap for query in answered for gap in query.itl]),
        e2e=Spread.of(_known(query.e2e for query in answered)),
        late=Spread.of([query.sent - query.at for query in queries if query.sent is not None]),
    )


def summarize_writes(writes: Sequence[WriteRecord]) -> WriteSummary:
    """Compute the figures of writes of one kind."""
    ended = [write for write in writes if write.outcome is Outcome.ANSWERED and write.ended is not None]
    return WriteSummary(
        outcomes=dict(Counter(write.outcome for write in writes)),
        refusals=_reasons(writes, Outcome.REFUSED),
        errors=_reasons(writes, Outcome.FAILED),
        seconds=Spread.of(_known(write.ended - write.at for write in ended if write.ended is not None)),
    )


def keeps_objectives(query: QueryRecord, settings: LoadSettings) -> bool:
    """Return whether the time to first token and the mean gap between pieces of text meet the objectives."""
    if query.ttft is None or query.ttft > settings.slo_ttft:
        return False
    return not query.itl or sum(query.itl) / len(query.itl) <= settings.slo_itl


def hit_rate(queries: Iterable[QueryRecord]) -> float | None:
    """Return cached tokens as a share of prompt tokens, or None without prompts."""
    counts = [(query.cached_tokens, query.prompt_tokens) for query in queries]
    prompts = sum(prompt for _, prompt in counts)
    return sum(cached for cached, _ in counts) / prompts if prompts else None


def _reasons(records: Sequence[QueryRecord | WriteRecord], outcome: Outcome) -> dict[str, int]:
    ended = [record for record in records if record.outcome is outcome]
    with_status = outcome is Outcome.REFUSED
    texts = (f"{record.status} {record.reason}".rstrip() if with_status else str(record.reason) for record in ended)
    return dict(Counter(texts).most_common())


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _per(count: int, seconds: float) -> float:
    return count / seconds if seconds else 0.0
