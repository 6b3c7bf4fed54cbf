"""The thread in which indexes are built anew."""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from retriever.index.building import AnyIndex, IndexBuilder
from retriever.threads import yield_to_others

_log = structlog.get_logger(__name__)
_AFTER_FAILURE_S = 60.0


class Rebuilder:
    """Builds indexes of collections, one at a time, beside all else that goes on.

    One thread asks for them and adopts them; ``built`` is set whenever there is one to adopt. What a process that dies
    was building is nowhere. A build that fails is logged, and not tried again at once.
    """

    def __init__(
        self, builder: IndexBuilder, built: threading.Event, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._builder = builder
        self._ready = built
        self._clock = clock
        self._pool = ThreadPoolExecutor(1, "retriever-rebuild", initializer=yield_to_others)
        self._changed = threading.Condition()
        self._wanted: set[int] = set()
        self._not_before: dict[int, float] = {}
        self._built: deque[tuple[int, AnyIndex]] = deque()

    def want(self, collection: int) -> None:
        """Have the collection's index built, unless that is under way, or failed just now."""
        with self._changed:
            if collection in self._wanted or self._clock() < self._not_before.get(collection, 0.0):
                return
            self._wanted.add(collection)
        self._pool.submit(self._build, collection)

    def adopt(self, take_over: Callable[[int, AnyIndex], None]) -> None:
        """Give away what was built, each (collection, index) once; what fails on the way is built again later."""
        while self._built:
            collection, index = self._built.popleft()
            # Held all the while: whoever waits must not miss that the same index may be wanted anew at once.
            with self._changed:
                self._end(collection)
                try:
                    take_over(collection, index)
                except Exception as error:
                    self._failed(collection, error)

    def wait(self) -> None:
        """Return when nothing is being built, or waits to be adopted."""
        with self._changed:
            self._changed.wait_for(lambda: not self._wanted)

    def close(self) -> None:
        """Forget what is wanted; a build that has begun is waited for, and goes nowhere."""
        self._pool.shutdown(cancel_futures=True)
        with self._changed:
            self._wanted.clear()
            self._changed.notify_all()

    def _build(self, collection: int) -> None:
        try:
            index = self._builder.build(collection)
        except Exception as error:
            self._failed(collection, error)
        else:
            self._built.append((collection, index))
            self._ready.set()

    def _failed(self, collection: int, error: Exception) -> None:
        _log.error("index not built anew, tried later", collection=collection, exc_info=error)
        self._not_before[collection] = self._clock() + _AFTER_FAILURE_S
        self._end(collection)

    def _end(self, collection: int) -> None:
        with self._changed:
            self._wanted.discard(collection)
            self._changed.notify_all()
