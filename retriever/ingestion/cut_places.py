"""Where a text may be cut: the starts of its pieces, which are counted, and of its sections, which are preferred."""

import re
from collections.abc import Iterator

from tokenizers import Tokenizer

LONGEST_PIECE = 32
"""Characters. Some tokenizers make one unknown token of a word of any length, but the LLM pays for all of it."""

LONGEST_GAP = 256
"""Characters without a token, such as white space, that belong to the piece before. Further ones are pieces, too."""

WINDOW = 65_536
"""Characters that are tokenized at once. A tokenizer takes hundreds of bytes a character."""

_BETWEEN_WORDS = re.compile(r"(?<=[^\W_])(?=[ \n])")
"""Where no tokenizer looks back: before a white space that follows a letter or digit."""

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

_SEARCH_WINDOW = 65_536
"""Characters. A search holds the interpreter's lock, for which searches for documents wait."""


class PieceStarts:
    """The offsets at which the pieces of a text start: each token, with overlong tokens and gaps split.

    ``offsets`` ascend and hold the part that has been read and not dropped. Memory depends on that part and on the
    window, not on the text. The offsets are those of one pass over the text if each window has a space or line feed
    after a word in its last quarter, or if the tokenizer reads from left to right.
    """

    def __init__(self, tokenizer: Tokenizer, text: str, window: int = WINDOW) -> None:
        self.offsets: list[int] = []
        self._tokenizer = tokenizer
        self._text = text
        self._window = window
        self._at = 0
        self._last: int | None = None

    def read(self, count: int) -> None:
        """Have at least ``count`` offsets, unless the text has no more."""
        while len(self.offsets) < count and self._at < len(self._text):
            self._read_window()

    def drop(self, count: int) -> None:
        """Forget the first ``count`` offsets."""
        del self.offsets[:count]

    def _read_window(self) -> None:
        begin = self._at
        part = self._text[begin : begin + self._window]
        # A batch of one, because only batches are tokenised without holding Python's lock.
        tokens = self._tokenizer.encode_batch([part], add_special_tokens=False)[0].offsets
        seam = len(part) if begin + len(part) == len(self._text) else _seam(part, tokens)
        for start, end in tokens:
            if start >= seam:
                break
            for piece in range(start, min(max(end, start + 1), seam), LONGEST_PIECE):
                self._add(begin + piece)
        self._at = begin + seam
        if self._at == len(self._text) and self._last is not None:
            self._fill_gap(self._at)

    def _add(self, offset: int) -> None:
        self._fill_gap(offset)
        self.offsets.append(offset)
        self._last = offset

    def _fill_gap(self, end: int) -> None:
        self.offsets.extend(range((self._last or 0) + LONGEST_GAP, end, LONGEST_PIECE))


def _seam(part: str, tokens: list[tuple[int, int]]) -> int:
    """Return where the next window begins, above 0: where a token would start also if it saw what is before."""
    between = 0
    for found in _BETWEEN_WORDS.finditer(part, len(part) - len(part) // 4):
        between = found.start()
    if between:
        return between
    if not tokens or tokens[-1][1] < len(part):
        return len(part)
    start, end = tokens[-1]
    # The last token may go on in the next window.
    return start + (end - start - 1) // LONGEST_PIECE * LONGEST_PIECE or len(part)


def section_starts(text: str) -> Iterator[int]:
    """Yield the offsets of Markdown headings and of top-level definitions in source code, after a blank line.

    Fenced code in Markdown is part of its section. Takes linear time. Text between a blank line and its
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
        found = pattern.search(text, at, at + 2 * _SEARCH_WINDOW)
        if found and found.start() < at + _SEARCH_WINDOW:
            return found
        at += _SEARCH_WINDOW
    return None
