"""An approximate eviction order, for priorities that change over time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from cachectl.nodes.node import Copy
from cachectl.policies.eviction_order import EvictionOrder

# Candidates that are kept. With fewer than _FEWEST there is no choice, and more are drawn at once.
_CANDIDATES = 8
_FEWEST = 3
# A touch makes one draw, and this part of the draws that are owed beyond it.
_INSTALMENTS = 16


class SampledOrder(EvictionOrder):
    """Copies in no order. The copy to evict next is the lowest of a few candidates, the best of those drawn so far.

    For priorities that fall as time passes, which no heap can keep in order. Keeping candidates makes a draw worth
    nearly two of a blind sample's; Redis does so for its approximate LRU. Each candidate that leaves is owed ``draws``
    draws, which are made a few at a time as copies are touched. So a request that evicts many copies takes them from
    the candidates, and requests that evict none refill them. A ticket is the copy's index in the list, plus 1.
    """

    def __init__(self, current: Callable[[Copy], float], random: Random, draws: int) -> None:
        self._current = current
        self._random = random.random
        self._draws = draws
        self._copies: list[Copy] = []
        # By copy, the priority when it was last looked at.
        self._candidates: dict[Copy, float] = {}
        self._owed = 0

    def enter(self, copy: Copy) -> None:
        """Put a copy in, unless it is in."""
        if not copy.ticket:
            self._copies.append(copy)
            copy.ticket = len(self._copies)

    def void(self, copy: Copy) -> None:
        """Take a copy out, if it is in. The last copy of the list takes its index."""
        if copy.ticket:
            last = self._copies.pop()
            if last is not copy:
                self._copies[copy.ticket - 1] = last
                last.ticket = copy.ticket
            copy.ticket = 0
            if self._candidates.pop(copy, None) is not None:
                self._owed += self._draws

    def touch(self, copy: Copy) -> None:  # noqa: ARG002
        """Make some of the draws that are owed. The copy's own priority is computed when it is needed."""
        if self._owed and self._copies:
            draws = 1 + self._owed // _INSTALMENTS
            self._owed -= draws
            self._draw(draws)

    def reconsider(self, copy: Copy) -> None:
        """Do nothing: priorities are computed when they are needed."""

    def lowest(self) -> tuple[Copy, float] | None:
        """The candidate of lowest priority. Exact while there are few copies."""
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
            # Its priority may have risen since it became a candidate.
            value = current(lowest)
            if value <= candidates[lowest]:
                return lowest, value
            candidates[lowest] = value

    def lowest_few(self, count: int) -> list[Copy]:
        """The candidates, filled up with copies at even distances in the list. Makes no draws."""
        copies = self._copies
        few = dict.fromkeys(self._candidates)
        if len(few) < count:
            few.update(dict.fromkeys(copies[:: max(1, len(copies) // count)][:count]))
        return sorted(few, key=self._current)[:count]

    def _draw(self, draws: int) -> None:
        """Make candidates of copies drawn at random, and drop the highest candidates if there are too many."""
        copies, candidates, current, random = self._copies, self._candidates, self._current, self._random
        if len(candidates) >= 2 * _CANDIDATES:
            best = sorted(candidates, key=candidates.__getitem__)[:_CANDIDATES]
            self._candidates = candidates = {copy: candidates[copy] for copy in best}
        for _ in range(draws):
            copy = copies[int(random() * len(copies))]
            candidates[copy] = current(copy)
