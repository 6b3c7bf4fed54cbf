"""How late the campaign itself was, so that the stack is not blamed for it."""

import asyncio
import time
from collections import deque

_POLL_S = 0.2
_LEAST_S = 1.0
_KEPT = 1000


class Lateness:
    """When the event loop was late by a second or more: it waited for a processor, or for its own work."""

    def __init__(self) -> None:
        self._late: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    async def watch(self) -> None:
        """Watch the loop until cancelled."""
        while True:
            due = time.monotonic() + _POLL_S
            await asyncio.sleep(_POLL_S)
            if time.monotonic() - due >= _LEAST_S:
                self._late.append((due, time.monotonic()))

    def between(self, begun: float, ended: float) -> float:
        """For how many seconds of this time the loop was late. Both are on the monotonic clock."""
        return sum(max(0.0, min(ended, ran) - max(begun, due)) for due, ran in self._late)
