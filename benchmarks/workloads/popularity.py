"""How often which document is asked for: skews that are set, not found."""

import math
from collections.abc import Sequence
from enum import StrEnum
from itertools import accumulate

from protocol.errors import ConfigError


class Popularity(StrEnum):
    """How often documents are asked for: by the skew of RAGCache's Figure 5, or as the set's own questions come."""

    PAPER = "paper"
    OWN = "own"


PAPER_TOP_SHARE, PAPER_REQUESTS_SHARE = 0.03, 0.60
"""RAGCache, Figure 5: the top 3 % of documents take 60 % of the requests."""


def zipf_weights(count: int, top_share: float, requests_share: float) -> list[float]:
    """Weights that sum to 1, the greatest first, of which the first ``top_share`` take ``requests_share``.

    They follow Zipf's law, its exponent found by bisection. Raises ConfigError where no exponent does that.
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
    """Running sums, as ``random.choices`` takes them."""
    return list(accumulate(weights))


def _zipf(count: int, exponent: float) -> list[float]:
    logarithms = [-exponent * math.log(rank) for rank in range(1, count + 1)]
    weights = [math.exp(value) for value in logarithms]
    total = sum(weights)
    return [weight / total for weight in weights]
