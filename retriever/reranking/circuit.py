"""A circuit breaker: after a failure, calls are not made for a while."""

from collections.abc import Callable


class Circuit:
    """Lets every call through until one fails. From then on, it lets one through every ``pause_s`` seconds.

    The first of these that succeeds ends the pause. ``clock`` returns monotonic seconds.
    """

    def __init__(self, pause_s: float, clock: Callable[[], float]) -> None:
        self._pause_s = pause_s
        self._clock = clock
        self._next_at: float | None = None

    def lets_through(self) -> bool:
        """Return whether a call may be made now. If the circuit is broken, others have to wait for its result."""
        if self._next_at is None:
            return True
        if self._clock() < self._next_at:
            return False
        self._next_at = self._clock() + self._pause_s
        return True

    def succeeded(self) -> None:
        """Record that a call has succeeded."""
        self._next_at = None

    def failed(self) -> None:
        """Record that a call has failed, which breaks the circuit."""
        self._next_at = self._clock() + self._pause_s
