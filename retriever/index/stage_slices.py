"""Cut a search's work into the slices that its stages read."""

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple


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
