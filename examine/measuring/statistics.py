"""Percentiles, confidence intervals and histograms of measured values."""

import math
from collections.abc import Sequence

import numpy as np


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` percent of ``values`` lie, linearly interpolated.

    Needs at least one value.
    """
    return float(np.percentile(np.asarray(values, dtype=np.float64), share))


_RESAMPLES = 10_000
_DRAWS_AT_ONCE = 1_000_000


def bootstrap_interval(values: Sequence[float], seed: int) -> tuple[float, float]:
    """Return the 95 % interval of the mean: percentiles of means of resampled values (Efron, 1979).

    It assumes independent values and needs at least one. Equal seeds give equal intervals.
    """
    return grouped_bootstrap_interval([[value] for value in values], seed)


def grouped_bootstrap_interval(groups: Sequence[Sequence[float]], seed: int) -> tuple[float, float]:
    """Return the 95 % interval of the mean of all values, which depend on each other within a group.

    Whole groups are resampled. It assumes independent groups and needs at least one.
    """
    sums = np.asarray([sum(group) for group in groups], dtype=np.float64)
    counts = np.asarray([len(group) for group in groups])
    draws = np.random.default_rng(seed)
    means: list[float] = []
    while len(means) < _RESAMPLES:
        # Many at once, which does not change what is drawn.
        at_once = min(_RESAMPLES - len(means), max(1, _DRAWS_AT_ONCE // len(groups)))
        drawn = draws.integers(len(groups), size=(at_once, len(groups)))
        means += (sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)).tolist()
    return percentile(means, 2.5), percentile(means, 97.5)


class TimeHistogram:
    """Histogram of times in seconds with buckets of one percent. Its size does not grow with the number of times.

    The mean is exact. Percentiles are within one percent. Times below a microsecond count as one.
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
        """The mean; 0 if empty."""
        return self._total / self._count if self._count else 0.0

    def percentile(self, share: float) -> float:
        """Return the time that ``share`` percent do not exceed; 0 if empty."""
        seen = 0
        for bucket, count in sorted(self._counts.items()):
            seen += count
            if seen >= self._count * share / 100:
                return self._SMALLEST * math.exp(bucket * self._GROWTH)
        return 0.0
