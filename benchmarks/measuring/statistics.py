"""Order statistics of measured values, and how sure their mean is."""

import math
from collections.abc import Sequence

import numpy as np


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` percent of ``values`` lie, linearly interpolated. Needs at least one value."""
    return float(np.percentile(np.asarray(values, dtype=np.float64), share))


_RESAMPLES = 10_000


def bootstrap_interval(values: Sequence[float], seed: int) -> tuple[float, float]:
    """The 95 % interval of the mean: percentiles of means over draws with replacement (Efron, 1979).

    Values are taken for independent of each other. Needs at least one value; equal seeds give equal intervals.
    """
    drawn_from = np.asarray(values, dtype=np.float64)
    draws = np.random.default_rng(seed)
    means = [drawn_from[draws.integers(len(values), size=len(values))].mean() for _ in range(_RESAMPLES)]
    return percentile(means, 2.5), percentile(means, 97.5)


class TimeHistogram:
    """Times in seconds, counted in buckets of one percent: its size does not grow with what it counts.

    The mean is exact. Percentiles are within one percent; times below a microsecond count as that.
    """

    _SMALLEST = 1e-6
    _GROWTH = math.log(1.01)

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._total = 0.0
        self._count = 0

    def add(self, seconds: float) -> None:
        """Count a time."""
        bucket = math.ceil(math.log(max(seconds, self._SMALLEST) / self._SMALLEST) / self._GROWTH)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self._total += seconds
        self._count += 1

    @property
    def mean(self) -> float:
        """The mean; 0 where nothing was counted."""
        return self._total / self._count if self._count else 0.0

    def percentile(self, share: float) -> float:
        """The time that ``share`` percent do not exceed; 0 where nothing was counted."""
        seen = 0
        for bucket, count in sorted(self._counts.items()):
            seen += count
            if seen >= self._count * share / 100:
                return self._SMALLEST * math.exp(bucket * self._GROWTH)
        return 0.0
