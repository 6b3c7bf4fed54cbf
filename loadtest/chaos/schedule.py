"""Who is killed when."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from loadtest.chaos.victims import Victim


class Planned(NamedTuple):
    """A kill that comes ``pause_s`` after what it waits for: the recovery from the one before, or that one itself."""

    pause_s: float
    victim: Victim


def kills(victims: Sequence[Victim], mean_pause_s: float, draws: Random) -> Iterator[Planned]:
    """Kills for ever, in rounds of an order of their own, in each of which every kind comes once.

    Equal draws give equal kills.
    """
    while True:
        for victim in draws.sample(victims, len(victims)):
            yield Planned(mean_pause_s * draws.uniform(0.5, 1.5), victim)
