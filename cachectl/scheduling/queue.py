"""The waiting state in front of an instance: whose documents are cached goes first, within a window (RAGCache, 5.2)."""

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from protocol.errors import ConfigError, InvalidRequest, Overloaded, UnknownPlan

# What waits, in the heap's order: highest priority first, then the older. (minus priority, sequence number, query)
_Entry = tuple[float, int, str]

# The heap is rebuilt when it holds this many entries for each query that waits ...
_HEAP_SLACK = 4
# ... where fewer than so many count as so many, so that a short queue is not rebuilt all the time.
_HEAP_FLOOR = 16


class Turn(NamedTuple):
    """Whose turn it is, and how often he was overtaken while he waited."""

    query_id: str
    overtaken: int


def priority(cached_tokens: int, computed_tokens: int) -> float:
    """Cached tokens for each token still to compute, at least one: OrderPriority of RAGCache, section 5.2.

    Raises InvalidRequest for negative numbers.
    """
    if cached_tokens < 0 or computed_tokens < 0:
        raise InvalidRequest(f"{cached_tokens} cached and {computed_tokens} computed tokens: neither may be negative")
    return cached_tokens / max(1, computed_tokens)


class CacheAwareQueue:
    """At most ``max_queued`` queries that wait, served by ``priority``, the older first among equals.

    A query is overtaken whenever a younger one is served while it waits; a younger one that is removed has not
    overtaken it. That happens at most ``window`` times: then it is served next. So a query with p others ahead of it
    is served by the (p + ``window`` + 1)th pop after it came, and a window of 0 is first come, first served.

    ``refresh(query_id)`` gives a waiting query's cached and computed tokens as they are now. The best query is
    refreshed before it is served, each at most once in a pop, and goes back where its priority has fallen. With it
    only rises need to be told to ``reprioritise``; without it, every change. It must neither raise nor touch the queue.

    Raises ConfigError for negative bounds. Neither safe between threads nor in need of a clock.
    """

    def __init__(self, max_queued: int, window: int, refresh: Callable[[str], tuple[int, int]] | None = None) -> None:
        if max_queued < 0 or window < 0:
            raise ConfigError(f"a queue of {max_queued} with a window of {window}: neither may be negative")
        self._max_queued = max_queued
        self._window = window
        self._refresh = refresh
        self._next_sequence = 0
        # In order of arrival. The heap also holds what these entries replaced: an entry counts if it is the one here.
        self._waiting: OrderedDict[str, _Entry] = OrderedDict()
        self._heap: list[_Entry] = []
        # Who was served and is younger than the oldest that waits, by sequence number, ascending. All of them overtook
        # the oldest and nobody was overtaken by more, so they are at most as many as the window.
        self._overtakers: list[int] = []
        self._largest_overtake = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, query_id: object) -> bool:
        return query_id in self._waiting

    def __iter__(self) -> Iterator[str]:
        """Queries that wait, in order of arrival."""
        return iter(self._waiting)

    @property
    def largest_overtake(self) -> int:
        """The greatest number of times that any query served so far was overtaken."""
        return self._largest_overtake

    def overtaken(self, query_id: str) -> int:
        """How many younger queries were served since this one came. Raises UnknownPlan when it does not wait."""
        return self._overtaken(self._entry(query_id))

    def push(self, query_id: str, cached_tokens: int, computed_tokens: int) -> None:
        """Let a query wait; O(log n).

        Raises InvalidRequest for negative numbers or a query that waits already, Overloaded when no more may wait.
        """
        new_priority = priority(cached_tokens, computed_tokens)
        if query_id in self._waiting:
            raise InvalidRequest(f"query {query_id!r} waits already")
        if len(self._waiting) >= self._max_queued:
            raise Overloaded(f"the queue is full: {len(self._waiting)} queries wait; try again later")
        self._insert((-new_priority, self._next_sequence, query_id))
        self._next_sequence += 1

    def reprioritise(self, query_id: str, cached_tokens: int, computed_tokens: int) -> None:
        """Tell what has become of a query's documents; it keeps its age. O(log n) in the long run.

        Raises InvalidRequest for negative numbers, UnknownPlan for a query that does not wait.
        """
        new_priority = priority(cached_tokens, computed_tokens)
        old_key, sequence, _ = self._entry(query_id)
        if -new_priority != old_key:
            self._insert((-new_priority, sequence, query_id))

    def pop(self, fits: Callable[[str], bool] | None = None) -> Turn | None:
        """Take the query to serve next, unless there is none, or it does not fit: then nobody else is served, either.

        O(log n) in the long run, for each query refreshed.
        """
        if not self._waiting:
            return None
        entry = self._oldest() if len(self._overtakers) >= self._window else self._best()
        _, sequence, query_id = entry
        if fits is not None and not fits(query_id):
            return None
        turn = Turn(query_id, self._overtaken(entry))
        self._largest_overtake = max(self._largest_overtake, turn.overtaken)
        insort(self._overtakers, sequence)
        self._withdraw(query_id)
        return turn

    def remove(self, query_id: str) -> bool:
        """Forget a query that gave up; whether it waited."""
        if query_id not in self._waiting:
            return False
        self._withdraw(query_id)
        return True

    def check_integrity(self) -> None:
        """Assert that bounds hold, ages ascend, the heap holds what waits once, and the overtakers are all needed."""
        waiting = list(self._waiting.values())
        sequences = [sequence for _, sequence, _ in waiting]
        assert len(waiting) <= self._max_queued
        assert [query_id for _, _, query_id in waiting] == list(self._waiting)
        assert all(older < younger for older, younger in pairwise([*sequences, self._next_sequence]))
        assert all(key <= 0 for key, _, _ in waiting)
        live = [entry for entry in self._heap if self._waiting.get(entry[2]) is entry]
        assert len(live) == len(waiting)
        assert len({id(entry) for entry in live}) == len(live)
        assert len(self._heap) <= self._heap_limit()
        assert all(self._heap[(child - 1) // 2] <= self._heap[child] for child in range(1, len(self._heap)))
        assert all(older < younger for older, younger in pairwise(self._overtakers))
        assert len(self._overtakers) <= self._window
        assert not set(self._overtakers) & set(sequences)
        assert all(sequences and sequences[0] < sequence < self._next_sequence for sequence in self._overtakers)
        assert self._largest_overtake <= self._window

    def _entry(self, query_id: str) -> _Entry:
        entry = self._waiting.get(query_id)
        if entry is None:
            raise UnknownPlan(f"query {query_id!r} does not wait")
        return entry

    def _oldest(self) -> _Entry:
        return next(iter(self._waiting.values()))

    def _overtaken(self, entry: _Entry) -> int:
        return len(self._overtakers) - bisect_right(self._overtakers, entry[1])

    def _best(self) -> _Entry:
        """Whoever has the highest priority, as ``refresh`` sees it; somebody must wait."""
        refreshed: set[int] = set()
        while True:
            best = self._heap[0]
            old_key, sequence, query_id = best
            if self._waiting.get(query_id) is not best:
                heapq.heappop(self._heap)
                continue
            if self._refresh is None or sequence in refreshed:
                return best
            # Priorities that were not refreshed are too high at worst, so whoever keeps the first place is the best.
            new_key = -priority(*self._refresh(query_id))
            if new_key <= old_key:
                return best
            self._insert((new_key, sequence, query_id))
            refreshed.add(sequence)

    def _insert(self, entry: _Entry) -> None:
        """Put an entry in, in the stead of the query's last one if it has one."""
        self._waiting[entry[2]] = entry
        heapq.heappush(self._heap, entry)
        self._compact()

    def _withdraw(self, query_id: str) -> None:
        """Take a query out, and forget the overtakers that overtook nobody who still waits."""
        del self._waiting[query_id]
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
