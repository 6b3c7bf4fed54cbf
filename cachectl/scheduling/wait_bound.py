"""The wait bound: no reordering makes a query wait much longer than first come, first served would."""

from __future__ import annotations

import math
from collections import deque

_LATELY = 100
"""The last arrivals whose waits count: a bound on their longest wait is one on the 99th percentile."""


class WaitBound:
    """Bounds every query's wait by ``slack`` times the longest wait of the last 100 arrivals, had none been overtaken.

    First come, first served makes a query wait for all that wait when it arrives. So the bound grows and shrinks with
    the queue. Time is counted in seconds of prefill that were served, as the cost model expects them. Therefore the
    bound needs no clock, and stays right if the engine is slower than expected.

    A query may be served before older ones if all these, served after it in the order of their arrival, still keep
    the bound. An infinite slack is no bound.
    """

    def __init__(self, slack: float) -> None:
        self._slack = slack
        self._served_s = 0.0
        self._backlog_s = 0.0
        # By query, in order of arrival: its own seconds, and those served before it arrived.
        self._waiting: dict[str, tuple[float, float]] = {}
        # Seconds that waited at the last arrivals.
        self._lately: deque[float] = deque(maxlen=_LATELY)

    def entered(self, query_id: str, seconds: float) -> None:
        """Record a query that begins to wait; its prefill takes ``seconds``."""
        self._lately.append(self._backlog_s)
        self._waiting[query_id] = (seconds, self._served_s)
        self._backlog_s += seconds

    def changed(self, query_id: str, seconds: float) -> None:
        """Record that a waiting query's prefill takes ``seconds`` now."""
        before, arrived_s = self._waiting[query_id]
        self._waiting[query_id] = (seconds, arrived_s)
        self._backlog_s += seconds - before

    def served(self, query_id: str) -> None:
        """Record that a waiting query's turn came. It still has to leave."""
        self._served_s += self._waiting[query_id][0]

    def left(self, query_id: str) -> None:
        """Record a query that waits no longer. An empty queue starts anew."""
        seconds, _ = self._waiting.pop(query_id)
        self._backlog_s -= seconds
        if not self._waiting:
            self._lately.clear()
            self._served_s = self._backlog_s = 0.0

    def allows(self, query_id: str) -> bool:
        """Whether a waiting query may be served next. O(n) in the number of older ones."""
        if math.isinf(self._slack):
            return True
        longest_s = self._slack * max(self._lately)
        begins_s = self._served_s + self._waiting[query_id][0]
        for older, (seconds, arrived_s) in self._waiting.items():
            if older == query_id:
                break
            if begins_s - arrived_s > longest_s:
                return False
            begins_s += seconds
        return True
