"""Arrivals at their times: none waits for the answer to another."""

import time
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from gevent.event import Event
from gevent.pool import Group


class Due(Protocol):
    """Something that happens ``at`` seconds after the begin."""

    @property
    def at(self) -> float: ...  # noqa: D102 - said above


DueT = TypeVar("DueT", bound=Due)


class OpenLoop:
    """Runs each thing that is due in a greenlet of its own, begun at its time; ``start`` is the clock's zero.

    At most ``most`` run at once. What is due beyond that is not put off, which would close the loop: it is missed.
    """

    def __init__(self, start: float, most: int) -> None:
        self._start = start
        self._most = most
        self._running = Group()
        self._ended = Event()

    def run(self, due: Iterable[DueT], serve: Callable[[DueT], None], miss: Callable[[DueT], None]) -> None:
        """Begin everything that is due; returns when the last has begun, or at ``end``."""
        for item in due:
            if self._ended.wait(max(0.0, self._start + item.at - time.monotonic())):
                return
            if len(self._running) < self._most:
                self._running.spawn(serve, item)
            else:
                miss(item)

    def end(self) -> None:
        """Begin nothing more; what has begun goes on."""
        self._ended.set()

    def join(self) -> None:
        """Wait until all that has begun has ended."""
        self._running.join()

    def kill(self) -> None:
        """End what still runs, and wait until it has."""
        self._running.kill()
