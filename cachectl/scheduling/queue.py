"""The cache-aware queue of an instance: the most cached request goes first, within bounds (RAGCache, section 5.2)."""

import heapq
import math
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from cachectl.scheduling.wait_bound import WaitBound
from protocol.errors import ConfigError, InvalidRequest, Overloaded, UnknownPlan

# (minus priority, sequence number, query): the heap's order is highest priority first, then the older.
_Entry = tuple[float, int, str]

# The heap is rebuilt when it holds this many entries for each waiting query ...
_HEAP_SLACK = 4
# ... and for at least this number of queries, so that a short queue is not rebuilt all the time.
_HEAP_FLOOR = 16

WINDOW = 64
"""How often a query may be overtaken, unless configured otherwise."""
SLACK = 1.1
"""How many times as long as first come, first served the longest wait may be."""


class Work(NamedTuple):
    """What a query's prefill finds cached, what it has to compute, and the seconds that it is expected to take."""

    cached_tokens: int
    computed_tokens: int
    seconds: float = 0.0

    @property
    def priority(self) -> float:
        """Cached tokens for each token to compute, of which there is at least one (RAGCache, section 5.2).

        Raises InvalidRequest for negative numbers.
        """
        cached, computed = self.cached_tokens, self.computed_tokens
        if cached < 0 or computed < 0:
            raise InvalidRequest(f"{cached} cached and {computed} computed tokens: neither may be negative")
        return cached / max(1, computed)


class Turn(NamedTuple):
    """The query whose turn it is, and how often it was overtaken while it waited."""

    query_id: str
    overtaken: int


class CacheAwareQueue:
    """At most ``max_queued`` waiting queries, served by the priority of their work; of equals the older first.

    A query is overtaken when a younger one is served while it waits. That happens at most ``window`` times: then it is
    served next. So a query with p others ahead of it is served by the (p + ``window`` + 1)th pop after it came, and a
    window of 0 is first come, first served. The oldest is also served next if otherwise a query would wait for too long
    (see `WaitBound`, which takes ``slack``).

    ``refresh(query_id)`` gives a waiting query's work as it is now. The best query is refreshed before it is served, at
    most once in a pop, and goes back if its priority has fallen. With ``refresh``, callers report only rises to
    ``reprioritise``; without it, every change. It must neither raise nor touch the queue.

    ``largest_overtake`` is the greatest number of times that any query served so far was overtaken.
    Raises ConfigError for negative bounds. Not thread-safe; needs no clock.
    """

    def __init__(
        self,
        max_queued: int,
        window: int,
        refresh: Callable[[str], Work] | None = None,
        slack: float = math.inf,
    ) -> None:
        if max_queued < 0 or window < 0 or slack < 0:
            raise ConfigError(
                f"a queue of {max_queued} with a window of {window} and a slack of {slack:g}: none may be negative"
            )
        self._max_queued = max_queued
        self._window = window
        self._refresh = refresh
        self._next_sequence = 0
        # In order of arrival. The heap also holds replaced entries: an entry is live if it is the one here.
        self._waiting: OrderedDict[str, _Entry] = OrderedDict()
        self._heap: list[_Entry] = []
        # Served queries that are younger than the oldest waiting one, by ascending sequence number. All of them
        # overtook the oldest, and no query was overtaken by more, so they number at most the window.
        self._overtakers: list[int] = []
        self.largest_overtake = 0
        self._wait_bound = WaitBound(slack)

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, query_id: object) -> bool:
        return query_id in self._waiting

    def __iter__(self) -> Iterator[str]:
        """Waiting queries in order of arrival."""
        return iter(self._waiting)

    def soonest(self, count: int) -> list[str]:
        """The ``count`` queries of highest known priority, whose turns come next unless one may wait no longer."""
        return [query_id for _, _, query_id in heapq.nsmallest(count, self._waiting.values())]

    def push(self, query_id: str, work: Work) -> None:
        """Add a query. O(log n).

        Raises InvalidRequest for negative numbers or a waiting query, and Overloaded if the queue is full.
        """
        new_priority = work.priority
        if query_id in self._waiting:
            raise InvalidRequest(f"query {query_id!r} waits already")
        if len(self._waiting) >= self._max_queued:
            raise Overloaded(f"the queue is full: {len(self._waiting)} queries wait; try again later")
        self._insert((-new_priority, self._next_sequence, query_id))
        self._next_sequence += 1
        self._wait_bound.entered(query_id, work.seconds)

    def reprioritise(self, query_id: str, work: Work) -> None:
        """Update a query's work. It keeps its age. O(log n) amortised.

        Raises InvalidRequest for negative numbers, UnknownPlan for a query that does not wait.
        """
        new_priority = work.priority
        old_key, sequence, _ = self._entry(query_id)
        self._wait_bound.changed(query_id, work.seconds)
        if -new_priority != old_key:
            self._insert((-new_priority, sequence, query_id))

    def pop(self, fits: Callable[[str], bool] | None = None) -> Turn | None:
        """Remove the query to serve next; None if there is none, or if it does not fit, as no other goes ahead of it.

        O(log n) amortised for each refreshed query, and O(n) for the bound on waits.
        """
        if not self._waiting:
            return None
        entry = self._next()
        _, sequence, query_id = entry
        if fits is not None and not fits(query_id):
            return None
        turn = Turn(query_id, self._overtaken(entry))
        self.largest_overtake = max(self.largest_overtake, turn.overtaken)
        insort(self._overtakers, sequence)
        self._wait_bound.served(query_id)
        self._withdraw(query_id)
        return turn

    def remove(self, query_id: str) -> bool:
        """Remove a query that gave up; whether it waited."""
        if query_id not in self._waiting:
            return False
        self._withdraw(query_id)
        return True

    def _entry(self, query_id: str) -> _Entry:
        entry = self._waiting.get(query_id)
        if entry is None:
            raise UnknownPlan(f"query {query_id!r} does not wait")
        return entry

    def _next(self) -> _Entry:
        """The entry to serve next: the best one, or the oldest if that may wait no longer."""
        if len(self._overtakers) >= self._window:
            return self._oldest()
        best = self._best()
        return best if self._wait_bound.allows(best[2]) else self._oldest()

    def _oldest(self) -> _Entry:
        return next(iter(self._waiting.values()))

    def _overtaken(self, entry: _Entry) -> int:
        return len(self._overtakers) - bisect_right(self._overtakers, entry[1])

    def _best(self) -> _Entry:
        """The entry of highest priority after ``refresh``. The queue must not be empty."""
        refreshed: set[int] = set()
        while True:
            best = self._heap[0]
            old_key, sequence, query_id = best
            if self._waiting.get(query_id) is not best:
                heapq.heappop(self._heap)
                continue
            if self._refresh is None or sequence in refreshed:
                return best
            # An unrefreshed priority is too high at worst, so an entry that stays first is the best.
            work = self._refresh(query_id)
            self._wait_bound.changed(query_id, work.seconds)
            new_key = -work.priority
            if new_key <= old_key:
                return best
            self._insert((new_key, sequence, query_id))
            refreshed.add(sequence)

    def _insert(self, entry: _Entry) -> None:
        """Add an entry, which replaces the query's last one."""
        self._waiting[entry[2]] = entry
        heapq.heappush(self._heap, entry)
        self._compact()

    def _withdraw(self, query_id: str) -> None:
        """Remove a query, and the overtakers of no query that still waits."""
        del self._waiting[query_id]
        self._wait_bound.left(query_id)
        if not self._waiting:
            self._overtakers.clear()
        elif self._overtakers:
            del self._overtakers[: bisect_left(self._overtakers, self._oldest()[1])]
        self._compact()

    def _compact(self) -> None:
        if len(self._heap) > self._heap_limit():
            self._heap = list(self._waiting.values())
            heapq.heapify(self._heap)

    def _heap_limit(self) -> int:
        return _HEAP_SLACK * max(_HEAP_FLOOR, len(self._waiting))
