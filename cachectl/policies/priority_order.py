"""An exact eviction order, for priorities that only rise."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from cachectl.nodes.node import Copy
from cachectl.policies.eviction_order import EvictionOrder

# The heap is swept when it has more entries than this many times the live ones, and some.
_SLACK = 2
_SMALL = 64

# Entries that ``lowest_few`` looks at for each copy it is asked for.
_LOOKS = 4


class PriorityOrder(EvictionOrder):
    """Copies by priority, lowest first; among equals the least recently used first.

    A heap whose keys are lower bounds. Priorities rise at accesses, and an entry is corrected when it reaches the top.
    So accesses and locks cost nothing here, and a copy has at most one live entry. ``assess`` gives a copy's priority
    at an access, ``current`` its priority at this moment.
    """

    def __init__(self, assess: Callable[[Copy], float], current: Callable[[Copy], float]) -> None:
        self._assess = assess
        self._current = current
        self._tickets = count(1)
        self._entries: list[tuple[float, int, int, Copy]] = []
        self._live = 0

    def enter(self, copy: Copy) -> None:
        """Put a copy in with its current priority. An earlier entry becomes void."""
        if not copy.ticket:
            self._live += 1
        copy.ticket = next(self._tickets)
        copy.entered = self._current(copy)
        heapq.heappush(self._entries, (copy.entered, copy.node.last_access, copy.ticket, copy))
        if len(self._entries) > _SMALL + _SLACK * self._live:
            self._entries = [entry for entry in self._entries if entry[3].ticket == entry[2]]
            heapq.heapify(self._entries)

    def void(self, copy: Copy) -> None:
        """Take a copy out, if it is in. Its entry is swept later."""
        if copy.ticket:
            copy.ticket = 0
            self._live -= 1

    def touch(self, copy: Copy) -> None:
        """Compute a copy's priority again."""
        copy.priority = self._assess(copy)
        self.reconsider(copy)

    def reconsider(self, copy: Copy) -> None:
        """Lower a copy's key if its priority has fallen. Keys that are too low are corrected at the top of the heap."""
        if copy.ticket and self._current(copy) < copy.entered:
            self.enter(copy)

    def lowest(self) -> tuple[Copy, float] | None:
        """The copy of lowest priority."""
        entries = self._entries
        while entries:
            entered, accessed, ticket, copy = entries[0]
            if copy.ticket != ticket:
                heapq.heappop(entries)
                continue
            current = self._current(copy)
            if current <= entered and copy.node.last_access <= accessed:
                return copy, current
            copy.ticket = next(self._tickets)
            copy.entered = current
            heapq.heapreplace(entries, (current, copy.node.last_access, copy.ticket, copy))
        return None

    def lowest_few(self, count: int) -> list[Copy]:
        """The copies with the lowest keys. Approximate, because priorities may have risen above their keys."""
        entries = self._entries
        found: list[Copy] = []
        # Walks the heap from its top without changing it. Bounded, because many entries may be void.
        frontier = [(entries[0], 0)] if entries else []
        for _ in range(_LOOKS * count):
            if not frontier or len(found) == count:
                break
            (_, _, ticket, copy), index = heapq.heappop(frontier)
            if copy.ticket == ticket:
                found.append(copy)
            for below in (2 * index + 1, 2 * index + 2):
                if below < len(entries):
                    heapq.heappush(frontier, (entries[below], below))
        found.sort(key=lambda copy: (self._current(copy), copy.node.last_access))
        return found
