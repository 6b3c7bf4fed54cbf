"""What a search reads, cut into the parts that its stages read."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from retriever.index.base import Ids


class Slice(NamedTuple):
    """What one stage reads: units (rows, or lists) from ``begin`` up to ``end``."""

    begin: int
    end: int


def equal_slices(rows: int, stages: int) -> list[Slice]:
    """Rows of one vector each, in so many slices, fewer where there are fewer rows."""
    stages = max(1, min(stages, rows))
    edges = [rows * stage // stages for stage in range(stages + 1)]
    return [Slice(begin, end) for begin, end in pairwise(edges)]


def level_slices(filled: Ids, stages: int) -> list[Slice]:
    """Lists in so many slices of about equally many vectors, fewer where lists are large.

    ``filled`` says for each list how many vectors it and those before it hold.
    """
    ends = filled.searchsorted(filled[-1] * np.arange(1, stages) / stages) + 1
    edges = sorted({0, *ends.tolist(), len(filled)})
    return [Slice(begin, end) for begin, end in pairwise(edges)]
