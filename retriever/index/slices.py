"""What a search reads, cut into the parts that its stages read."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class Slice(NamedTuple):
    """What one stage reads: units (rows, or lists) from ``begin`` up to ``end``, which hold so many vectors."""

    begin: int
    end: int
    vectors: int


def equal_slices(rows: int, stages: int) -> list[Slice]:
    """Rows of one vector each, in so many slices, fewer where there are fewer rows."""
    stages = max(1, min(stages, rows))
    edges = [rows * stage // stages for stage in range(stages + 1)]
    return [Slice(begin, end, end - begin) for begin, end in pairwise(edges)]


def level_slices(filled: Sequence[int], stages: int) -> list[Slice]:
    """Lists in so many slices of about equally many vectors, fewer where lists are large.

    ``filled`` says for each list how many vectors it and those before it hold.
    """
    ends = [bisect_left(filled, filled[-1] * stage / stages) + 1 for stage in range(1, stages)]
    edges = sorted({0, *ends, len(filled)})
    return [Slice(begin, end, filled[end - 1] - (filled[begin - 1] if begin else 0)) for begin, end in pairwise(edges)]
