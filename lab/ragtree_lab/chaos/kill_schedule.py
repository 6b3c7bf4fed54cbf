"""The order and times of kills."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from ragtree_lab.chaos.victims import Victim


class PlannedKill(NamedTuple):
    """A kill, ``pause_s`` seconds after the previous recovery, or after the previous kill if kills overlap."""

    pause_s: float
    victim: Victim


def kill_schedule(victims: Sequence[Victim], mean_pause_s: float, draws: Random) -> Iterator[PlannedKill]:
    """Yield kills forever, in rounds. Each round has every kind once, in random order.

    Equal draws give equal kills.
    """
    while True:
        for victim in draws.sample(victims, len(victims)):
            yield PlannedKill(mean_pause_s * draws.uniform(0.5, 1.5), victim)
