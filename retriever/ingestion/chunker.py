"""The chunker: cuts a document into pieces that its embedder sees whole."""

from collections.abc import Iterator
from typing import NamedTuple

from blake3 import blake3
from tokenizers import Tokenizer

from protocol.errors import ConfigError
from retriever.settings import ChunkSettings

_LONGEST_PIECE = 32
"""Characters. A tokenizer makes a single unknown token of a word of any length; the language model pays for it all."""


class ChunkText(NamedTuple):
    """A chunk before it is stored. ``start`` and ``end`` say where its body stands in the document's text."""

    text: str
    content_hash: str
    start: int
    end: int


class Chunker:
    """Cuts texts by tokens, with overlap, at the ends of words where one is near.

    Every chunk begins with the document's title, if it has one, so that prompt and embedding both see it; a chunk,
    title included, is never longer than ``limit`` tokens. All text but white space lies in some chunk. Raises
    ConfigError for an overlap of more than half a chunk.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, settings: ChunkSettings) -> None:
        self.limit = min(settings.size, max_tokens)
        self._overlap = min(settings.overlap, self.limit // 2)
        self._tokenizer = tokenizer
        if self.limit < 8:
            raise ConfigError(f"a chunk must have room for 8 tokens, not {self.limit}")
        if not 0 <= settings.overlap <= settings.size // 2:
            raise ConfigError(f"an overlap of {settings.overlap} tokens does not fit chunks of {settings.size}")

    @property
    def fingerprint(self) -> str:
        """What must be equal for two chunkers of one embedder to cut alike."""
        return f"chunks:{self.limit}/{self._overlap}"

    def chunks(self, text: str, title: str | None = None) -> list[ChunkText]:
        """The chunks of a text in order; none if it is blank."""
        heading = self._heading(title)
        # Short documents are the common case, and need one pass only.
        if len(text) <= self.limit * _LONGEST_PIECE and text.strip():
            whole = _with_heading(heading, text.strip())
            if self._count(whole) <= self.limit:
                start = len(text) - len(text.lstrip())
                return [_chunk(whole, start, start + len(text.strip()))]
        return list(self._cut(text, heading))

    def _cut(self, text: str, heading: str) -> Iterator[ChunkText]:
        starts = self._piece_starts(text)
        room = self.limit - (self._count(heading) if heading else 0)
        overlap = min(self._overlap, room // 2)
        slack = room // 8
        first = covered = 0
        while first < len(starts):
            last = min(first + room, len(starts))
            if last < len(starts):
                last = _whole(starts, first, _word_start(text, starts, last, last - slack))
            while True:
                begin = starts[first] if first else 0
                end = starts[last] if last < len(starts) else len(text)
                body = text[begin:end]
                chunk = _with_heading(heading, body.strip())
                excess = self._count(chunk) - self.limit
                shorter = _whole(starts, first, last - excess) if excess > 0 else last
                # A piece may count for more on its own than it did within its word.
                if shorter >= last:
                    break
                last = shorter
            start, stop = end - len(body.lstrip()), begin + len(body.rstrip())
            # Without its white space a chunk may hold nothing that the one before does not.
            if stop > max(start, covered):
                yield _chunk(chunk, start, stop)
                covered = stop
            if last >= len(starts):
                return
            back = last - overlap
            first = _whole(starts, first, _word_start(text, starts, back, back - slack)) if overlap else last

    def _heading(self, title: str | None) -> str:
        """The title as far as it leaves three quarters of a chunk to the text."""
        if not title or not title.strip():
            return ""
        title = " ".join(title.split())
        starts = self._piece_starts(title)
        most = self.limit // 4
        return title if len(starts) <= most else title[: starts[most]].rstrip()

    def _count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _piece_starts(self, text: str) -> list[int]:
        """Where each token begins, and where an overlong token is broken."""
        starts: list[int] = []
        for start, end in self._tokenizer.encode(text, add_special_tokens=False).offsets:
            starts.extend(range(start, max(end, start + 1), _LONGEST_PIECE))
        return starts


def _word_start(text: str, starts: list[int], at: int, lowest: int) -> int:
    """The piece nearest to ``at``, down to ``lowest``, that begins a word; ``at`` itself if none does."""
    for candidate in range(at, max(lowest, 1), -1):
        here = starts[candidate]
        # A tokenizer may count the space before a word to the word.
        if text[here].isspace() or text[here - 1].isspace():
            return candidate
    return at


def _whole(starts: list[int], first: int, at: int) -> int:
    """The piece at ``at``, or the one before it that begins a character, but always one behind the piece ``first``."""
    # Tokens of bytes: several pieces may begin at one character, which a cut must not divide.
    while at > first and starts[at] == starts[at - 1]:
        at -= 1
    if at <= first:
        at = first + 1
        while at < len(starts) and starts[at] == starts[first]:
            at += 1
    return at


def _with_heading(heading: str, body: str) -> str:
    """The body under its heading, unless it opens with that heading itself, as Markdown does."""
    if not heading or body.partition("\n")[0].strip("# ") == heading:
        return body
    return f"{heading}\n{body}"


def _chunk(text: str, start: int, end: int) -> ChunkText:
    return ChunkText(text, blake3(text.encode()).hexdigest(), start, end)
