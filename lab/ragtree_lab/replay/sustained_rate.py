"""The highest rate that a system sustains: what counts as sustained, and which rates to try."""

import math

import msgspec

from ragtree_lab.measuring.phases import Measured

LONGEST_TTFT = 5.0
"""A rate is sustained while mean TTFT is at most this many times the unloaded one (RAGCache, section 7)."""

LEAST_ANSWERED = 0.95
"""The least share of the offered requests that must be answered in time."""

_STEP = 1.14
"""Rates to try are this far apart, so that they are at most 15 % apart when rounded."""

_LOWEST = -40
"""The lowest step to try: 0.0053 requests per second."""


class Sustained(msgspec.Struct, frozen=True):
    """The rule for one system, by what it does ``unloaded``."""

    unloaded: Measured

    @property
    def most_mean_ttft_ms(self) -> float:
        """The longest mean TTFT of a sustained rate."""
        return LONGEST_TTFT * self.unloaded.mean_ttft_ms

    @property
    def longest_answer_s(self) -> float:
        """How long an answer takes with that TTFT, in seconds."""
        return (self.most_mean_ttft_ms + self.unloaded.mean_answer_ms - self.unloaded.mean_ttft_ms) / 1000

    def holds(self, measured: Measured) -> bool:
        """Whether a measured rate is sustained."""
        return measured.answered_in_time >= LEAST_ANSWERED and measured.mean_ttft_ms <= self.most_mean_ttft_ms


def rate_at(step: int) -> float:
    """Return the rate of a step, in requests per second. Step 0 is one request per second."""
    return float(f"{_STEP**step:.3g}")


def step_below(rate: float) -> int:
    """Return the step of the highest rate that is at most ``rate``."""
    return math.floor(math.log(rate) / math.log(_STEP))


class RateSearch:
    """Finds the highest sustained step: from ``first`` upwards in growing strides, then halving what is left.

    Results may also come from steps that the search did not ask for. Steps above a failed one count as failed.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._stride = 1
        self._sustained: int | None = None
        self._failed: int | None = None

    def add(self, step: int, sustained: bool) -> None:
        """Add a result."""
        if sustained:
            self._stride *= 2 if step >= self._first else 1
            self._sustained = step if self._sustained is None else max(step, self._sustained)
        else:
            self._failed = step if self._failed is None else min(step, self._failed)
        if self._sustained is not None and self._failed is not None and self._sustained > self._failed:
            self._sustained = None

    @property
    def next(self) -> int | None:
        """The step to try next; None once the highest sustained step is found, or no step is low enough."""
        if self._failed is None:
            return self._first if self._sustained is None else max(self._first, self._sustained + self._stride // 2)
        if self._sustained is None:
            below = min(self._first, self._failed - 1)
            return below if below >= _LOWEST else None
        middle = (self._sustained + self._failed) // 2
        return middle if middle > self._sustained else None
