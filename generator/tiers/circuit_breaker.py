"""Keeps requests from an object store that does not answer, so that not each waits for a timeout."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from generator.tiers.base import TierError, TierUnavailable

log = structlog.get_logger(__name__)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0


class CircuitBreaker:
    """After a failed request, none is made for a pause. The pauses double, from 1 s to 60 s.

    When a pause ends, one request is made. If it succeeds, the others follow; if not, the next pause begins. The log
    says once that the ``store`` fails, and once that it works again; ``act`` is what the requests do, such as reading.
    Thread-safe. ``clock`` returns seconds and never goes back.
    """

    def __init__(self, store: str, act: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.failures = 0
        """Requests that have failed so far. Those that were not made do not count."""
        self._store = store
        self._act = act
        self._clock = clock
        self._lock = threading.Lock()
        self._pause_s = 0.0
        self._resumes = 0.0
        # The number of the present pause, so that requests from before it do not lengthen it.
        self._pauses = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Make a request within the block: it has failed if the block raises TierUnavailable.

        Raises TierUnavailable, without entering the block, during a pause.
        """
        pauses = self._enter()
        try:
            yield
        except TierUnavailable as error:
            self._failed(pauses, error)
            raise
        except TierError:
            # The store has answered that it does not have what was asked for.
            self._succeeded()
            raise
        else:
            self._succeeded()

    def _enter(self) -> int:
        with self._lock:
            if self._pause_s:
                now = self._clock()
                if now < self._resumes:
                    raise TierUnavailable(f"{self._act} failed at {self._store}, and is not tried again before a pause")
                # The others wait for this request's result, for a pause at most.
                self._resumes = now + self._pause_s
            return self._pauses

    def _failed(self, pauses: int, error: TierUnavailable) -> None:
        with self._lock:
            self.failures += 1
            if pauses != self._pauses:
                return
            first = not self._pause_s
            self._pauses += 1
            self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            self._resumes = self._clock() + self._pause_s
        if first:
            log.warning("the object store fails", store=self._store, act=self._act, error=str(error))

    def _succeeded(self) -> None:
        with self._lock:
            again = self._pause_s
            self._pause_s = 0.0
        if again:
            log.info("the object store works again", store=self._store, act=self._act)
