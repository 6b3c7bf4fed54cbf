"""The highest rate of arrivals that a stack keeps up with."""

from collections.abc import Callable

from loadtest.errors import LoadTestError
from loadtest.reporting.results import Results

GOOD_SHARE = 0.9
_LEAST_RATE, _FIRST_RATE, _MOST_RATE = 0.0625, 0.5, 1024.0


def find_capacity(load: Callable[[float], Results]) -> float:
    """The highest rate tried at which ``GOOD_SHARE`` of the arrivals are answered well.

    It is doubled, or halved where the first is too much, then halfway back. ``load`` runs a load test at a rate. Raises
    LoadTestError where even the lowest rate is too much.
    """

    def keeps_up(rate: float) -> bool:
        return (load(rate).total.good_share or 0.0) >= GOOD_SHARE

    kept = _FIRST_RATE
    while not keeps_up(kept):
        if kept <= _LEAST_RATE:
            raise LoadTestError(f"not even {kept} queries a second are answered within the objectives")
        kept /= 2
    while _FIRST_RATE <= kept < _MOST_RATE and keeps_up(2 * kept):
        kept *= 2
    return 1.5 * kept if kept < _MOST_RATE and keeps_up(1.5 * kept) else kept
