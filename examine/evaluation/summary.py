"""The figures of an evaluation: means with intervals, by mode, and exact against composed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

import msgspec

from examine.evaluation.answer import Answer
from examine.evaluation.asking import Row
from examine.evaluation.scores import Scores
from examine.measuring.statistics import bootstrap_interval, percentile

METRICS = Scores.__struct_fields__

_SEED = 0


class Mean(msgspec.Struct, frozen=True):
    """The mean over ``questions`` questions, and its bootstrapped 95 % interval."""

    value: float
    low: float
    high: float
    questions: int


class Times(msgspec.Struct, frozen=True):
    """Milliseconds: the mean, half and 95 % of the answers are not slower than."""

    mean: float
    p50: float
    p95: float


class TokenShares(msgspec.Struct, frozen=True):
    """Sources of the prompts' tokens, as shares of all; they add up to 1. ``prompt_tokens`` is the mean of a prompt."""

    prompt_tokens: float
    cached: float
    composed: float
    computed: float


class ModeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured in one mode.

    ``scores`` lacks a metric that no question has. ``ttft_ms`` is None if no answer had text, ``total_ms`` and
    ``tokens`` if there was no answer. ``cut`` answers reached their longest length. ``reuse`` counts the answers by
    which KV their prompts used, ``fallbacks`` by why nothing was composed.
    """

    asked: int
    answered: int
    failed: int
    cut: int
    scores: dict[str, Mean]
    ttft_ms: Times | None
    total_ms: Times | None
    tokens: TokenShares | None
    reuse: dict[str, int]
    fallbacks: dict[str, int]


def summarise(rows: Sequence[Row]) -> ModeSummary:
    """Return the figures of the rows of one mode."""
    answers = [row.answer for row in rows if row.answer is not None]
    scores = {metric: _values(rows, metric) for metric in METRICS}
    return ModeSummary(
        asked=len(rows),
        answered=len(answers),
        failed=len(rows) - len(answers),
        cut=sum(answer.finish_reason == "length" for answer in answers),
        scores={metric: mean(list(values.values())) for metric, values in scores.items() if values},
        ttft_ms=_times(list(_values(rows, "ttft_ms").values())),
        total_ms=_times(list(_values(rows, "total_ms").values())),
        tokens=_shares(answers),
        reuse=dict(Counter(answer.reuse for answer in answers)),
        fallbacks=dict(Counter(answer.fallback for answer in answers if answer.fallback is not None)),
    )


def differences(rows: Sequence[Row], baseline: Sequence[Row]) -> dict[str, Mean]:
    """Return how much higher the scores and times of ``rows`` are, over the questions that both have them of."""
    found = {}
    for metric in (*METRICS, "ttft_ms", "total_ms"):
        own, other = _values(rows, metric), _values(baseline, metric)
        pairs = [mine - other[line] for line, mine in own.items() if line in other]
        if pairs:
            found[metric] = mean(pairs)
    return found


def mean(values: Sequence[float]) -> Mean:
    """Return the mean of at least one value."""
    low, high = bootstrap_interval(values, _SEED)
    return Mean(fmean(values), low, high, len(values))


def value(row: Row, metric: str) -> float | None:
    """A score of a row, or a time of its answer: ``ttft_ms`` or ``total_ms``; None if it has none."""
    return getattr(row.scores if metric in METRICS else row.answer, metric, None)


def _values(rows: Sequence[Row], metric: str) -> Mapping[int, float]:
    """Return a value by line, of the rows that have one."""
    return {row.line: found for row in rows if (found := value(row, metric)) is not None}


def _times(values: Sequence[float]) -> Times | None:
    if not values:
        return None
    return Times(fmean(values), percentile(values, 50), percentile(values, 95))


def _shares(answers: Sequence[Answer]) -> TokenShares | None:
    total = sum(answer.prompt_tokens for answer in answers)
    if not total:
        return None
    return TokenShares(
        prompt_tokens=total / len(answers),
        cached=sum(answer.cached_tokens for answer in answers) / total,
        composed=sum(answer.composed_tokens for answer in answers) / total,
        computed=sum(answer.computed_tokens for answer in answers) / total,
    )
