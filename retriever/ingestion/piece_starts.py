"""Where the pieces of a text start, which the chunker counts and cuts between. The text is tokenized in windows."""

import re

from tokenizers import Tokenizer

LONGEST_PIECE = 32
"""Characters. Some tokenizers make one unknown token of a word of any length, but the LLM pays for all of it."""

LONGEST_GAP = 256
"""Characters without a token, such as white space, that belong to the piece before. What follows is pieces, too."""

WINDOW = 65_536
"""Characters that are tokenized at once. A tokenizer takes hundreds of bytes a character."""

_BETWEEN_WORDS = re.compile(r"(?<=[^\W_])(?=[ \n])")
"""Where no tokenizer looks back: before a white space that follows a letter or digit."""


class PieceStarts:
    """The offsets at which the pieces of a text start: each token, with overlong tokens and gaps split.

    ``offsets`` ascend and hold the part that has been read and not dropped. Memory depends on that part and on the
    window, not on the text. The offsets are those of one pass over the text if each window has a space or line feed
    behind a word in its last quarter, or if the tokenizer reads from left to right.
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
