"""Popularity of documents."""

import math
import random
from collections.abc import Sequence
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigError


class Popularity(StrEnum):
    """What is popular: documents, each question asked once; the set's own choice, as before; or whole prompts.

    Documents and prompts have the skew of RAGCache's Figure 5.
    """

    DOCUMENTS = "documents"
    OWN = "own"
    PROMPTS = "prompts"


PAPER_TOP_SHARE, PAPER_REQUESTS_SHARE = 0.03, 0.60
"""RAGCache, Figure 5: the top 3 % of documents get 60 % of the requests."""

_STEPS = 60
"""Steps of a bisection: enough for every bit of a float."""
_STEEPEST = 16.0


def zipf_weights(count: int, top_share: float, requests_share: float) -> list[float]:
    """Return weights that sum to 1, in falling order; the first ``top_share`` of them get ``requests_share``.

    They follow Zipf's law; its exponent is found by bisection. Raises ConfigError if no exponent fits.
    """
    top = max(1, round(count * top_share))
    if count < 2 or top >= count or not top / count < requests_share < 1:
        raise ConfigError(f"no skew gives the first {top} of {count} documents {requests_share:.0%} of the requests")
    low, high = 0.0, _STEEPEST
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


class Skew(NamedTuple):
    """The first ``top_share`` of all ``documents`` get ``share`` of the requests."""

    documents: int
    top_share: float
    share: float

    @property
    def top(self) -> int:
        """The number of the first documents."""
        return max(1, round(self.documents * self.top_share))

    def most_requests(self, questions: Sequence[int]) -> int:
        """The most requests that ask each question once; ``questions`` are as ``request_counts`` takes them."""
        return min(int(sum(questions[: self.top]) / self.share), sum(questions))


def request_counts(questions: Sequence[int], requests: int, skew: Skew, draws: random.Random) -> list[int]:
    """Return how many of ``requests`` each document gets.

    ``questions`` are the numbers of questions of the first documents, in falling order; the rest have none. The counts
    follow Zipf's law, but no document gets more requests than it has questions. The exponent is found by bisection;
    fractions are rounded at random. Raises ConfigError if there are too few questions.
    """
    top, share = skew.top, skew.share
    asked = sum(questions[:top])
    if asked < share * requests or sum(questions) < requests:
        raise ConfigError(
            f"{requests} requests need {math.ceil(share * requests)} questions about the {top} most asked documents "
            f"and {requests} in all, but there are {asked} and {sum(questions)}: "
            "use fewer requests, a larger question set, or retrieve for more of its questions",
            "requests",
        )
    most = np.asarray(questions, np.float64)
    low, high = 0.0, _STEEPEST
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if _capped_zipf(most, middle, requests)[:top].sum() < share * requests:
            low = middle
        else:
            high = middle
    ends = np.cumsum(_capped_zipf(most, high, requests)) + draws.random()
    return [int(end) - int(begin) for begin, end in pairwise((0.0, *ends))]


def _capped_zipf(most: NDArray[np.float64], exponent: float, total: float) -> NDArray[np.float64]:
    """Return values of Zipf's law that sum to ``total``, each at most as in ``most``, which sums to no less."""
    law = np.arange(1, len(most) + 1, dtype=np.float64) ** -exponent
    low, high = 0.0, float((most / np.maximum(law, np.finfo(np.float64).tiny)).max())
    for _ in range(2 * _STEPS):
        middle = (low + high) / 2
        if np.minimum(most, middle * law).sum() < total:
            low = middle
        else:
            high = middle
    return np.minimum(most, high * law)


def _zipf(count: int, exponent: float) -> list[float]:
    logarithms = [-exponent * math.log(rank) for rank in range(1, count + 1)]
    weights = [math.exp(value) for value in logarithms]
    total = sum(weights)
    return [weight / total for weight in weights]
