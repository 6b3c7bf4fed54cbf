"""Times a stream of text, in the engine's process or in a client."""

import time
from collections.abc import Callable

import msgspec

from protocol.errors import InternalError


class StreamTiming(msgspec.Struct, frozen=True):
    """Seconds to a stream's first text, and the mean from one text to the next; None if there was only one."""

    first_token_s: float
    per_token_s: float | None


class StreamClock:
    """Times one stream, starting when the clock is created."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = clock()
        self._first = self._last = self._began
        self._arrived = 0

    @property
    def started(self) -> bool:
        """Whether any text has arrived."""
        return self._arrived > 0

    def arrived(self) -> None:
        """Record that the next text has arrived."""
        self._last = self._clock()
        if not self._arrived:
            self._first = self._last
        self._arrived += 1

    def timing(self) -> StreamTiming:
        """Return the stream's times. Raises InternalError if no text arrived."""
        if not self._arrived:
            raise InternalError("the stream ended without a token")
        between = self._arrived - 1
        return StreamTiming(self._first - self._began, (self._last - self._first) / between if between else None)
