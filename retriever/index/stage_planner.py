"""Plan the number of stages of a search."""

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from retriever.index.tuning import IndexTuning

_LATEST_WEIGHT = 0.2


class StagePlanner:
    """Estimates how long a search takes, and thus into how many stages to cut it.

    It keeps a running average of the seconds per unit of work. A unit is what the index counts: a row, a list, or a
    candidate of a beam.
    """

    def __init__(self, tuning: IndexTuning) -> None:
        self._tuning = tuning
        self._seconds_per_unit = 0.0

    def stages(self, units: int) -> int:
        """Return the number of stages for this work: one while nothing is known or if it is too short to cut."""
        expected_ms = 1000 * units * self._seconds_per_unit
        return max(1, min(self._tuning.stages, int(expected_ms / self._tuning.stage_ms)))

    def learn(self, units: int, seconds: float) -> None:
        """Record how long some work took."""
        if units:
            weight = _LATEST_WEIGHT if self._seconds_per_unit else 1.0
            self._seconds_per_unit += weight * (seconds / units - self._seconds_per_unit)


class Slice(NamedTuple):
    """The units (rows or lists) that one stage reads, from ``begin`` up to ``end``."""

    begin: int
    end: int


@lru_cache(1024)
def equal_slices(units: int, stages: int) -> tuple[Slice, ...]:
    """Cut ``units`` into about equal slices, one per stage; fewer if there are fewer units."""
    stages = max(1, min(stages, units))
    edges = [units * stage // stages for stage in range(stages + 1)]
    return tuple(Slice(begin, end) for begin, end in pairwise(edges))
