"""How much processor time each caller's schemas may take."""

import math
from collections.abc import Callable
from typing import NamedTuple

from protocol.errors import RateLimited

_MINUTE_S = 60.0


class _Spent(NamedTuple):
    seconds: float
    at: float


class CompileBudgets:
    """A budget of ``seconds`` of processor time a minute for each caller. ``clock`` tells monotonic seconds.

    What is spent is given back evenly. A caller with any of it left may begin: what that costs is known at its end.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._spent: dict[str, _Spent] = {}

    def require(self, caller: str) -> None:
        """Raise RateLimited if the caller's budget is spent."""
        over = self._now_spent(caller) - self._seconds
        if over >= 0:
            raise RateLimited(
                f"New JSON schemas of this key have taken their {self._seconds:g} s of processor time a minute.",
                retry_after_s=math.ceil((over + 0.01) * _MINUTE_S / self._seconds),
            )

    def spend(self, caller: str, seconds: float) -> None:
        """Take from the caller's budget."""
        now = self._clock()
        # Who has all of it back is forgotten.
        self._spent = {other: spent for other, spent in self._spent.items() if self._left(spent, now) > 0}
        self._spent[caller] = _Spent(self._now_spent(caller) + seconds, now)

    def _now_spent(self, caller: str) -> float:
        spent = self._spent.get(caller)
        return 0.0 if spent is None else max(0.0, self._left(spent, self._clock()))

    def _left(self, spent: _Spent, now: float) -> float:
        """What is not given back yet."""
        return spent.seconds - (now - spent.at) * self._seconds / _MINUTE_S
