"""The times of a stream of text: the same clock beside the engine and at the other end of the stack."""

import time
from collections.abc import Callable

import msgspec

from protocol.errors import InternalError


class StreamTiming(msgspec.Struct, frozen=True):
    """Seconds to a stream's first text, and on the mean from one to the next; None where there was but one."""

    first_token_s: float
    per_token_s: float | None


class StreamClock:
    """Counts from when it is made."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = clock()
        self._first = self._last = self._began
        self._arrived = 0

    @property
    def started(self) -> bool:
        """Whether any text arrived."""
        return self._arrived > 0

    def arrived(self) -> None:
        """Note that the next text is there."""
        self._last = self._clock()
        if not self._arrived:
            self._first = self._last
        self._arrived += 1

    def timing(self) -> StreamTiming:
        """The times. Raises InternalError for a stream without any text."""
        if not self._arrived:
            raise InternalError("a stream of the benchmark ended without a token")
        between = self._arrived - 1
        return StreamTiming(self._first - self._began, (self._last - self._first) / between if between else None)
