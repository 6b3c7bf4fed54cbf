"""The thread that rebuilds indexes."""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from retriever.index.builder import AnyIndex, IndexBuilder
from retriever.machine import lower_priority

_log = structlog.get_logger(__name__)
_RETRY_AFTER_S = 60.0


class Rebuilder:
    """Rebuilds the indexes of collections in the background, one at a time.

    One thread requests and installs rebuilds. ``built`` is set whenever one is ready to install. A build that fails is
    logged and not retried for a minute. Nothing remains of a build if the process dies.
    """

    def __init__(
        self, builder: IndexBuilder, built: threading.Event, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._builder = builder
        self._on_built = built
        self._clock = clock
        self._pool = ThreadPoolExecutor(1, "retriever-rebuild", initializer=lower_priority)
        self._changed = threading.Condition()
        self._requested: set[int] = set()
        self._retry_at: dict[int, float] = {}
        self._built: deque[tuple[int, AnyIndex]] = deque()

    def request(self, collection: int) -> None:
        """Request a rebuild, unless one is pending or has failed recently."""
        with self._changed:
            if collection in self._requested or self._clock() < self._retry_at.get(collection, 0.0):
                return
            self._requested.add(collection)
        self._pool.submit(self._build, collection)

    def install_rebuilt(self, install: Callable[[int, AnyIndex], None]) -> None:
        """Pass each finished (collection, index) to ``install`` once. If that fails, the build is repeated later."""
        while self._built:
            collection, index = self._built.popleft()
            # Hold the lock throughout: ``install`` may request another rebuild, which ``wait`` must not miss.
            with self._changed:
                self._end(collection)
                try:
                    install(collection, index)
                except Exception as error:
                    self._failed(collection, error)

    def wait(self) -> None:
        """Return when no rebuild is running or waiting to be installed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._requested)

    def close(self) -> None:
        """Drop all requests. A running build is awaited and discarded."""
        self._pool.shutdown(cancel_futures=True)
        with self._changed:
            self._requested.clear()
            self._changed.notify_all()

    def _build(self, collection: int) -> None:
        try:
            index = self._builder.build(collection)
        except Exception as error:
            self._failed(collection, error)
        else:
            self._built.append((collection, index))
            self._on_built.set()

    def _failed(self, collection: int, error: Exception) -> None:
        _log.error("index rebuild failed, retrying later", collection=collection, exc_info=error)
        self._retry_at[collection] = self._clock() + _RETRY_AFTER_S
        self._end(collection)

    def _end(self, collection: int) -> None:
        with self._changed:
            self._requested.discard(collection)
            self._changed.notify_all()
