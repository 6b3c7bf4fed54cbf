"""Find the highest arrival rate that a stack keeps up with."""

from collections.abc import Callable

from loadtest.errors import LoadTestError
from loadtest.reporting.results import Results

GOOD_SHARE = 0.9
_LEAST_RATE, _FIRST_RATE, _MOST_RATE = 0.0625, 0.5, 1024.0


def find_capacity(load: Callable[[float], Results]) -> float:
    """Return the highest rate tried at which ``GOOD_SHARE`` of the arrivals get a good answer.

    The rate is doubled, or halved if the first is too high, and then 1.5 times the result is tried. ``load`` runs a
    load test at a rate. Raises LoadTestError if even the lowest rate is too high.
    """

    def keeps_up(rate: float) -> bool:
        return (load(rate).total.good_share or 0.0) >= GOOD_SHARE

    highest = _FIRST_RATE
    while not keeps_up(highest):
        if highest <= _LEAST_RATE:
            raise LoadTestError(f"the stack does not meet the objectives even at {highest} queries per second")
        highest /= 2
    while _FIRST_RATE <= highest < _MOST_RATE and keeps_up(2 * highest):
        highest *= 2
    return 1.5 * highest if highest < _MOST_RATE and keeps_up(1.5 * highest) else highest
