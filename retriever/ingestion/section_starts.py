"""Where the sections of a text begin, before which the chunker prefers to cut."""

import re
from collections.abc import Iterator

_MODIFIER = (
    r"(?:export|default|public|private|protected|internal|pub(?:\(\w+\))?"
    r"|static|abstract|final|sealed|async|unsafe|data)"
)
_DEFINITION = r"(?:def|class|func|function|fn|fun|interface|struct|enum|trait|impl|module|namespace|CREATE)"
_MARK = r"(?:[@#]|//|/\*| \*|--).*+\n"
"""A line with a decorator or a comment, which belongs to the definition below it."""

_FENCE = r"^ {0,3}(?:```|~~~)"
# Repetitions are possessive, because otherwise the memory for going back grows with every line.
_SECTION = re.compile(
    rf"(?P<gap>\n[ \t]*+\n)(?=#{{1,6}}[ \t]++\S|(?:{_MARK})*+(?:{_MODIFIER} )*+{_DEFINITION}[ \t]++\S)|{_FENCE}",
    re.MULTILINE,
)
_FENCE_END = re.compile(rf"{_FENCE}[ \t]*+$", re.MULTILINE)

_WINDOW = 65_536
"""Characters. A search holds the interpreter's lock, for which searches for documents wait."""


def section_starts(text: str) -> Iterator[int]:
    """Yield the offsets of Markdown headings and of top-level definitions in source code, after a blank line.

    Fenced code in Markdown is part of its section. Takes linear time. What stands between a blank line and its
    definition may have 65,536 characters; otherwise it is no section.
    """
    at = 0
    while found := _first(_SECTION, text, at):
        at = found.end()
        if found["gap"]:
            yield at
        else:
            fence_end = _first(_FENCE_END, text, at)
            at = fence_end.end() if fence_end else len(text)


class SectionCursor:
    """Goes through the section starts of a text once."""

    def __init__(self, text: str) -> None:
        self._starts = section_starts(text)
        self._end = len(text) + 1
        self._next = -1
        self._last = -1

    def last_before(self, end: int) -> int:
        """Return the last section start before an offset, -1 if there is none. Offsets must not descend."""
        while self._next < end:
            self._last, self._next = self._next, next(self._starts, self._end)
        return self._last


def _first(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str] | None:
    """Return the first match from an offset on, searched for in windows."""
    while at < len(text):
        found = pattern.search(text, at, at + 2 * _WINDOW)
        if found and found.start() < at + _WINDOW:
            return found
        at += _WINDOW
    return None
