"""The lines of a text that a range of its characters covers."""

import re
from bisect import bisect_left

from protocol.retrieval import Lines


class LineCounter:
    """Counts the lines of one text, which a line feed ends."""

    def __init__(self, text: str) -> None:
        self._ends = [found.start() for found in re.finditer("\n", text)]

    def of(self, start: int, end: int) -> Lines:
        """Return the lines of the characters from ``start`` up to ``end``, which must be above it."""
        return Lines(bisect_left(self._ends, start) + 1, bisect_left(self._ends, end - 1) + 1)
