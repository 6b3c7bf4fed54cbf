"""A histogram of as many times as a simulation has."""

import math


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
