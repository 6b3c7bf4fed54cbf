"""The lines of a text that a range of its characters covers."""

from protocol.retrieval import Lines


class LineCounter:
    """Counts the lines of one text, which a line feed ends. It counts on from the range before, so these ascend."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1

    def of(self, start: int, end: int) -> Lines:
        """Return the lines of the characters from ``start`` up to ``end``, which must be above it.

        ``start`` must not be below that of an earlier call.
        """
        self._line += self._text.count("\n", self._at, start)
        self._at = start
        return Lines(self._line, self._line + self._text.count("\n", start, end - 1))
