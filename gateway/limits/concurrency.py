"""Limits on concurrent work, per caller and in total."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from protocol.errors import Overloaded, RateLimited


class Concurrency:
    """Slots for one kind of work, called ``what`` in messages. ``most`` bounds all callers of this gateway together."""

    def __init__(self, what: str, most: int | None = None) -> None:
        self._what = what
        self._most = most
        self._held = Counter[str]()

    def __len__(self) -> int:
        return self._held.total()

    @contextmanager
    def slot(self, owner: str = "", most: int | None = None) -> Iterator[None]:
        """Hold a slot for the duration of the block.

        Raises RateLimited if the owner holds ``most`` slots already, and Overloaded if all slots are taken.
        """
        if most is not None and self._held[owner] >= most:
            raise RateLimited(f"This key has {most:,} running {self._what}, its limit; wait for one to end.")
        if self._most is not None and len(self) >= self._most:
            raise Overloaded(f"{self._most:,} {self._what} are running, the gateway's limit; try again later.")
        self._held[owner] += 1
        try:
            yield
        finally:
            self._held[owner] -= 1
            if not self._held[owner]:
                del self._held[owner]
