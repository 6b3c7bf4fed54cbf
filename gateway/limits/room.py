"""Bounds on what the callers of a gateway hold for a while: all together, and each."""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from protocol.errors import Overloaded, RateLimited


class Room:
    """Room for ``total`` of something that callers hold for a while, called ``what`` in messages.

    With ``fair``, a caller gets no more while it holds more than would be left free: the dynamic threshold of shared
    buffers. Alone, it can hold half of the total; of several that want all, each gets the same, and as much stays free
    for the next one. A caller that holds nothing is bounded by the total only. Without a total, only ``slot`` bounds
    callers.
    """

    def __init__(self, what: str, total: float = math.inf, *, fair: bool = False) -> None:
        self._what = what
        self._total = total
        self._fair = fair
        self._held_by = Counter[str]()
        self.held = 0

    def check(self, owner: str, amount: int = 1, same: int = 0) -> None:
        """Check that the owner may take so much more. Of what it holds, ``same`` is for the same purpose.

        Raises Overloaded if that is not left, and RateLimited if the owner holds too much else.
        """
        left = self._total - self.held - amount
        if left < 0:
            raise Overloaded(f"The gateway's limit of {self._total:,} {self._what} is reached; try again later.")
        held = self._held_by[owner] - same
        if self._fair and held > left:
            raise RateLimited(f"This key has {held:,} {self._what}, more than are left for others; try again later.")

    def take(self, owner: str, amount: int = 1, same: int = 0) -> None:
        """Take so much more. Raises as ``check`` does, and takes nothing then."""
        self.check(owner, amount, same)
        self.held += amount
        self._held_by[owner] += amount

    def give_back(self, owner: str, amount: int = 1) -> None:
        """Give back so much of what the owner holds."""
        self.held -= amount
        self._held_by[owner] -= amount
        if not self._held_by[owner]:
            del self._held_by[owner]

    @contextmanager
    def slot(self, owner: str, most: int | None) -> Iterator[None]:
        """Hold one for the duration of the block.

        Raises RateLimited if the owner holds ``most`` already, and what ``check`` raises.
        """
        if most is not None and self._held_by[owner] >= most:
            raise RateLimited(f"This key has {most:,} {self._what}, its limit; wait for one to end.")
        self.take(owner)
        try:
            yield
        finally:
            self.give_back(owner)
