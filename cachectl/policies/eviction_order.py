"""The order in which copies leave a cache: exact where priorities only rise, by samples where they move at will."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from itertools import count
from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from cachectl.tree.node import Copy

# Entries of copies that are gone may make up this share of the heap before it is swept.
_SLACK = 2
_SMALL = 64

# Candidates that are kept; with fewer than the fewest there is no choice, and more are drawn at once.
_CANDIDATES = 8
_FEWEST = 3
# Entries looked at for each of the few lowest that are asked for.
_LOOKS = 4
# A touch makes one draw, and this part of what is owed beyond it.
_INSTALMENTS = 16


# Compiled (scripts/compile), it can be derived from all the same.
@mypyc_attr(allow_interpreted_subclasses=True)
class EvictionOrder(ABC):
    """The copies that may be evicted. ``Copy.ticket`` is the order's own: 0 for a copy that is not in it."""

    @abstractmethod
    def enter(self, copy: Copy) -> None:
        """Put a copy in."""

    @abstractmethod
    def void(self, copy: Copy) -> None:
        """Take a copy out, if it is in."""

    @abstractmethod
    def touch(self, copy: Copy) -> None:
        """Hear that a copy's node was accessed, or that the copy is new."""

    @abstractmethod
    def reconsider(self, copy: Copy) -> None:
        """Hear that a copy's priority may have fallen without an access."""

    @abstractmethod
    def lowest(self) -> tuple[Copy, float] | None:
        """The copy to go first, and its priority now; it stays in the order."""

    @abstractmethod
    def lowest_few(self, count: int) -> list[Copy]:
        """About the ``count`` copies to go first, lowest first, as cheaply as may be; they stay in the order."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Assert that tickets and entries agree."""


class PriorityOrder(EvictionOrder):
    """Copies by priority, lowest first; among equals the one that was not used for longest.

    A heap whose keys are lower bounds: priorities rise at every access, and an entry finds out when it comes to the
    top. So an access costs nothing here, a lock costs nothing, and a copy has one entry at most. ``assess`` gives a
    copy's priority at an access, ``current`` what it is at this moment.
    """

    def __init__(self, assess: Callable[[Copy], float], current: Callable[[Copy], float]) -> None:
        self._assess = assess
        self._current = current
        self._tickets = count(1)
        self._entries: list[tuple[float, int, int, Copy]] = []
        self._live = 0

    def enter(self, copy: Copy) -> None:
        """Put a copy in, or into another cache; an earlier entry is void."""
        if not copy.ticket:
            self._live += 1
        copy.ticket = next(self._tickets)
        copy.entered = self._current(copy)
        heapq.heappush(self._entries, (copy.entered, copy.node.last_access, copy.ticket, copy))
        if len(self._entries) > _SMALL + _SLACK * self._live:
            self._entries = [entry for entry in self._entries if entry[3].ticket == entry[2]]
            heapq.heapify(self._entries)

    def void(self, copy: Copy) -> None:
        """Take a copy out; its entry is swept later."""
        if copy.ticket:
            copy.ticket = 0
            self._live -= 1

    def touch(self, copy: Copy) -> None:
        """Assess a copy anew."""
        copy.priority = self._assess(copy)
        self.reconsider(copy)

    def reconsider(self, copy: Copy) -> None:
        """Lower a copy's key, if it has to be: what rose the order finds out by itself."""
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
        """The copies with the lowest keys: those of lowest priority, but for what rose since it was last on top."""
        entries = self._entries
        found: list[Copy] = []
        # The heap from its top down, without taking anything out; void entries may be many, so not without end.
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

    def check_integrity(self) -> None:
        """Assert that live entries are what their copies say, and that none has a key above its copy's priority."""
        live = [entry for entry in self._entries if entry[3].ticket == entry[2]]
        assert len(live) == self._live
        assert len({id(entry[3]) for entry in live}) == len(live)
        for entered, _, _, copy in live:
            assert entered == copy.entered
            assert entered <= self._current(copy)


class SampledOrder(EvictionOrder):
    """Copies in no order: the one to go is the lowest of some candidates, the best of those drawn at random so far.

    For priorities that fall by themselves as time passes, which no heap can keep. Candidates kept make a draw worth
    nearly two of a blind sample's (Redis keeps some for its approximate LRU). Each one that leaves is worth ``draws``
    draws, which are made a few at a time as copies are touched: a request that evicts many copies takes them from the
    candidates at hand, and requests that evict none look for more. A ticket is the copy's cache in the list, from 1.
    """

    def __init__(self, current: Callable[[Copy], float], random: Random, draws: int) -> None:
        self._current = current
        self._random = random.random
        self._draws = draws
        self._copies: list[Copy] = []
        # Each with its priority as it was last looked at.
        self._candidates: dict[Copy, float] = {}
        self._owed = 0

    def enter(self, copy: Copy) -> None:
        """Put a copy in, if it is not in."""
        if not copy.ticket:
            self._copies.append(copy)
            copy.ticket = len(self._copies)

    def void(self, copy: Copy) -> None:
        """Take a copy out; the last one takes its cache in the list."""
        if copy.ticket:
            last = self._copies.pop()
            if last is not copy:
                self._copies[copy.ticket - 1] = last
                last.ticket = copy.ticket
            copy.ticket = 0
            if self._candidates.pop(copy, None) is not None:
                self._owed += self._draws

    def touch(self, copy: Copy) -> None:  # noqa: ARG002
        """Draw some of what is owed; the copy's own priority is asked for when it matters."""
        if self._owed and self._copies:
            draws = 1 + self._owed // _INSTALMENTS
            self._owed -= draws
            self._draw(draws)

    def reconsider(self, copy: Copy) -> None:
        """Nothing: a priority is asked for when it matters."""

    def lowest(self) -> tuple[Copy, float] | None:
        """The candidate of lowest priority; exact while there are few copies."""
        copies, current = self._copies, self._current
        if len(copies) <= _CANDIDATES:
            value, _, copy = min(((current(copy), copy.ticket, copy) for copy in copies), default=(0.0, 0, None))
            return (copy, value) if copy is not None else None
        if len(self._candidates) < _FEWEST:
            self._owed = max(0, self._owed - self._draws)
            self._draw(self._draws)
        candidates = self._candidates
        while True:
            lowest = min(candidates, key=candidates.__getitem__)
            # What has risen since it became a candidate may be the lowest no longer.
            value = current(lowest)
            if value <= candidates[lowest]:
                return lowest, value
            candidates[lowest] = value

    def lowest_few(self, count: int) -> list[Copy]:
        """The candidates, and where they are too few others from all over the list; nothing is drawn for them."""
        copies = self._copies
        few = dict.fromkeys(self._candidates)
        if len(few) < count:
            few.update(dict.fromkeys(copies[:: max(1, len(copies) // count)][:count]))
        return sorted(few, key=self._current)[:count]

    def _draw(self, draws: int) -> None:
        """Make candidates of copies drawn at random; the best candidates stay."""
        copies, candidates, current, random = self._copies, self._candidates, self._current, self._random
        if len(candidates) >= 2 * _CANDIDATES:
            best = sorted(candidates, key=candidates.__getitem__)[:_CANDIDATES]
            self._candidates = candidates = {copy: candidates[copy] for copy in best}
        for _ in range(draws):
            copy = copies[int(random() * len(copies))]
            candidates[copy] = current(copy)

    def check_integrity(self) -> None:
        """Assert that every ticket is the copy's cache in the list, and that candidates are in it."""
        for cache, copy in enumerate(self._copies, start=1):
            assert copy.ticket == cache
        assert all(copy.ticket for copy in self._candidates)
