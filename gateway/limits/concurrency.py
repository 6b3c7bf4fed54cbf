"""Limits on concurrent work, per caller and in total."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.limits.room import Room
from protocol.errors import RateLimited


class Concurrency:
    """Slots for one kind of work, called ``what`` in messages. ``room`` bounds all callers of this gateway together."""

    def __init__(self, what: str, room: Room | None = None) -> None:
        self._what = what
        self._room = room
        self._held = Counter[str]()

    @contextmanager
    def slot(self, owner: str, most: int | None) -> Iterator[None]:
        """Hold a slot for the duration of the block.

        Raises RateLimited if the owner holds ``most`` slots already, and what the room raises.
        """
        if most is not None and self._held[owner] >= most:
            raise RateLimited(f"This key has {most:,} running {self._what}, its limit; wait for one to end.")
        if self._room is not None:
            self._room.take(owner)
        self._held[owner] += 1
        try:
            yield
        finally:
            self._held[owner] -= 1
            if not self._held[owner]:
                del self._held[owner]
            if self._room is not None:
                self._room.give_back(owner)
