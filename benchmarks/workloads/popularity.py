"""Popularity of documents."""

import math
from collections.abc import Sequence
from enum import StrEnum
from itertools import accumulate

from protocol.errors import ConfigError


class Popularity(StrEnum):
    """Popularity of documents: the skew of RAGCache's Figure 5, or that of the set's own questions."""

    PAPER = "paper"
    OWN = "own"


PAPER_TOP_SHARE, PAPER_REQUESTS_SHARE = 0.03, 0.60
"""RAGCache, Figure 5: the top 3 % of documents get 60 % of the requests."""


def zipf_weights(count: int, top_share: float, requests_share: float) -> list[float]:
    """Return weights that sum to 1, in falling order; the first ``top_share`` of them get ``requests_share``.

    They follow Zipf's law; its exponent is found by bisection. Raises ConfigError if no exponent fits.
    """
    top = max(1, round(count * top_share))
    if count < 2 or top >= count or not top / count < requests_share < 1:
        raise ConfigError(f"no skew gives the first {top} of {count} documents {requests_share:.0%} of the requests")
    low, high = 0.0, 64.0
    for _ in range(100):
        middle = (low + high) / 2
        weights = _zipf(count, middle)
        if sum(weights[:top]) < requests_share:
            low = middle
        else:
            high = middle
    return _zipf(count, high)


def cumulated(weights: Sequence[float]) -> list[float]:
    """Return running sums, as ``random.choices`` takes them."""
    return list(accumulate(weights))


def _zipf(count: int, exponent: float) -> list[float]:
    logarithms = [-exponent * math.log(rank) for rank in range(1, count + 1)]
    weights = [math.exp(value) for value in logarithms]
    total = sum(weights)
    return [weight / total for weight in weights]
