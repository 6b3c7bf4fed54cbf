"""Statistics of the gateway's last minutes, for people to look at."""

import math
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Literal

import msgspec

BUCKET_S = 5.0
WINDOW_S = 900.0

_GROWTH = 1.05
_SHORTEST_S, _LONGEST_S = 1e-4, 1e4


class ActivityBucket(msgspec.Struct, frozen=True, kw_only=True):
    """Queries that ended, and requests that were refused, in one bucket of time. It began ``ago_s`` seconds ago.

    ``first_tokens`` counts the queries that had a first token; without any, the percentiles are null.
    ``cached_tokens`` is the cached part of ``prompt_tokens``.
    """

    ago_s: float
    queries: int
    first_tokens: int
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    prompt_tokens: int
    cached_tokens: int
    rejected: int


class ActivityReport(msgspec.Struct, frozen=True, kw_only=True):
    """The last ``window_s`` seconds of this gateway, oldest first. Empty buckets are left out."""

    object: Literal["gateway.activity"] = "gateway.activity"
    bucket_s: float
    window_s: float
    buckets: tuple[ActivityBucket, ...]


class Activity:
    """Counters by bucket of time, for the last 15 minutes, in bounded memory.

    Each replica of the gateway counts its own queries; the metrics cover all replicas. ``clock`` returns monotonic
    seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: deque[_Bucket] = deque(maxlen=round(WINDOW_S / BUCKET_S))

    def prefilled(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Count a prefilled prompt."""
        bucket = self._current()
        bucket.prompt_tokens += prompt_tokens
        bucket.cached_tokens += cached_tokens

    def ended(self, first_token_s: float | None) -> None:
        """Count a query that ended, and its time to first token if it had one."""
        bucket = self._current()
        bucket.queries += 1
        if first_token_s is not None:
            bucket.first_tokens.add(first_token_s)

    def rejected(self) -> None:
        """Count a refused request."""
        self._current().rejected += 1

    def report(self) -> ActivityReport:
        """The window that ends now."""
        now = self._clock()
        recent = (bucket for bucket in self._buckets if now - bucket.number * BUCKET_S <= WINDOW_S)
        return ActivityReport(
            bucket_s=BUCKET_S, window_s=WINDOW_S, buckets=tuple(bucket.as_of(now) for bucket in recent)
        )

    def _current(self) -> "_Bucket":
        number = int(self._clock() // BUCKET_S)
        if not self._buckets or self._buckets[-1].number != number:
            self._buckets.append(_Bucket(number))
        return self._buckets[-1]


class _Bucket:
    """Counters of one bucket. ``number`` counts buckets from the clock's zero."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.queries = self.prompt_tokens = self.cached_tokens = self.rejected = 0
        self.first_tokens = _Durations()

    def as_of(self, now: float) -> ActivityBucket:
        return ActivityBucket(
            ago_s=now - self.number * BUCKET_S,
            queries=self.queries,
            first_tokens=self.first_tokens.count,
            ttft_p50_ms=self.first_tokens.quantile_ms(0.5),
            ttft_p95_ms=self.first_tokens.quantile_ms(0.95),
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            rejected=self.rejected,
        )


class _Durations:
    """A sketch of durations: a histogram whose classes grow by 5 %, so quantiles are exact to 2.5 %.

    From 0.1 ms to hours, that is fewer than 400 classes.
    """

    def __init__(self) -> None:
        self.count = 0
        self._classes = Counter[int]()

    def add(self, seconds: float) -> None:
        self.count += 1
        within = min(_LONGEST_S, max(_SHORTEST_S, seconds))
        self._classes[math.floor(math.log(within, _GROWTH))] += 1

    def quantile_ms(self, share: float) -> float | None:
        """The duration that this share of all durations does not exceed; None without durations."""
        left = math.ceil(share * self.count)
        for number, count in sorted(self._classes.items()):
            left -= count
            if left <= 0:
                return 1000 * math.pow(_GROWTH, number + 0.5)
        return None
