"""Start requests at their times, without waiting for earlier answers."""

import time
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from gevent.event import Event
from gevent.pool import Group


class Due(Protocol):
    """Something that is due ``at`` seconds after the start."""

    @property
    def at(self) -> float: ...  # noqa: D102 - see the class


DueT = TypeVar("DueT", bound=Due)


class OpenLoop:
    """Runs each due item in its own greenlet, started on time. ``start`` is the zero of the clock.

    At most ``most`` run at once. Further items are missed, not postponed, because postponing would close the loop.
    """

    def __init__(self, start: float, most: int) -> None:
        self._start = start
        self._most = most
        self._running = Group()
        self._ended = Event()

    def run(self, due: Iterable[DueT], serve: Callable[[DueT], None], miss: Callable[[DueT], None]) -> None:
        """Start every due item. Returns when the last has started, or at ``end``."""
        for item in due:
            if self._ended.wait(max(0.0, self._start + item.at - time.monotonic())):
                return
            if len(self._running) < self._most:
                self._running.spawn(serve, item)
            else:
                miss(item)

    def end(self) -> None:
        """Start no more items. Running ones continue."""
        self._ended.set()

    def join(self) -> None:
        """Wait until all started items have ended."""
        self._running.join()

    def kill(self) -> None:
        """End all running items and wait for them."""
        self._running.kill()
