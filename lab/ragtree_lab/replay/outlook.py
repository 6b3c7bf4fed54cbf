"""How long a replay still takes."""

from collections.abc import Callable, Mapping

from examine.measuring import Progress
from ragtree_lab.replay.record import RAGTREE, Variant

_RATES = 3
"""Rates that a search is expected to try."""


class Outlook:
    """Reports how long the search for sustained rates has taken, and about how long it takes in all, in seconds.

    ``rate_s`` is how long each system's first rate lasts. Ours is also measured at each baseline's rates.
    """

    def __init__(self, rate_s: Mapping[Variant, float], progress: Progress, clock: Callable[[], float]) -> None:
        self._rate_s = rate_s
        self._expected = dict.fromkeys(rate_s, _RATES)
        self._expected[RAGTREE] = _RATES + len(rate_s) - 1
        self._progress = progress
        self._clock = clock
        self._began = self._phase_began = clock()

    def begin(self) -> None:
        """Note that a rate begins."""
        self._phase_began = self._clock()
        self.report()

    def end(self, variant: Variant) -> None:
        """Note that a system's rate has ended."""
        self._expected[variant] = max(1, self._expected[variant] - 1)
        self.begin()

    def found(self, variant: Variant) -> None:
        """Note that a system's search has ended."""
        self._expected[variant] = 0
        self.report()

    def progress(self, step: str, done: int, total: int) -> None:
        """Report the progress of a rate, and with it the time."""
        self._progress(step, done, total)
        self.report()

    def report(self) -> None:
        """Report the time so far and in all."""
        now = self._clock()
        left = sum(self._rate_s[variant] * count for variant, count in self._expected.items())
        took = now - self._began
        self._progress(
            "search for sustained rates, seconds", round(took), round(max(took, self._phase_began + left - self._began))
        )
