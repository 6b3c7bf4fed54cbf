"""The chunker: cuts documents into chunks that the embedder sees whole."""

from bisect import bisect_right
from collections.abc import Iterator

from blake3 import blake3
from tokenizers import Tokenizer

from protocol.errors import ConfigError
from retriever.ingestion.cut_places import LONGEST_PIECE, WINDOW, PieceStarts, SectionCursor
from retriever.settings import ChunkSettings
from retriever.store.incoming import ChunkText

_MOST_PIECES_OF_A_CHARACTER = 64
"""A character becomes up to 18 others when it is normalized, of up to three bytes each."""


class Chunker:
    """Cuts texts by tokens, preferably before a section in the second half of a chunk, otherwise at word boundaries.

    A chunk repeats the end of the previous one, unless it starts with a section.

    Every chunk starts with the document's title, if there is one, so that the prompt and the embedding both contain it.
    A chunk has at most ``limit`` tokens, title included. Every character except white space is part of some chunk.
    A text is tokenized a ``window`` of characters at a time. Raises ConfigError if the limit is below 8 tokens or the
    overlap exceeds half a chunk.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, settings: ChunkSettings, window: int = WINDOW) -> None:
        self.limit = min(settings.size, max_tokens)
        self._overlap = min(settings.overlap, self.limit // 2)
        self._tokenizer = tokenizer
        self._window = window
        if self.limit < 8:
            raise ConfigError(f"a chunk must have at least 8 tokens, not {self.limit}")
        if not 0 <= settings.overlap <= settings.size // 2:
            raise ConfigError(f"an overlap of {settings.overlap} tokens exceeds half of a chunk of {settings.size}")

    @property
    def fingerprint(self) -> str:
        """Identifies the sizes that texts are cut to. A store with other ones is cut and embedded again."""
        return f"chunks:{self.limit}/{self._overlap}"

    def chunks(self, text: str, title: str | None = None) -> list[ChunkText]:
        """Return the chunks of a text in order; none if the text is blank."""
        return list(self.cut(text, title))

    def cut(self, text: str, title: str | None = None) -> Iterator[ChunkText]:
        """Yield the chunks of a text in order. Memory does not grow with the text."""
        heading = self._heading(title)
        # Most documents are short, and one pass is enough for them.
        if len(text) <= self.limit * LONGEST_PIECE and text.strip():
            whole = _with_heading(heading, text.strip())
            if self._count(whole) <= self.limit:
                start = len(text) - len(text.lstrip())
                yield _chunk(whole, start, start + len(text.strip()))
                return
        yield from self._cut(text, heading)

    def _cut(self, text: str, heading: str) -> Iterator[ChunkText]:
        pieces, sections = PieceStarts(self._tokenizer, text, self._window), SectionCursor(text)
        starts = pieces.offsets
        room = self.limit - (self._count(heading) if heading else 0)
        overlap = min(self._overlap, room // 2)
        slack = room // 8
        first = covered = 0
        while True:
            # Word starts are looked for also before the first piece of a chunk.
            pieces.drop(max(0, first - self.limit))
            first = min(first, self.limit)
            pieces.read(first + room + _MOST_PIECES_OF_A_CHARACTER)
            if first >= len(starts):
                return
            last = min(first + room, len(starts))
            section = None
            if last < len(starts):
                beyond = starts[last + 1] if last + 1 < len(starts) else len(text)
                section = _piece_in(starts, first + room // 2, sections.last_before(beyond))
                last = section or _whole(starts, first, _word_start(text, starts, last, last - slack))
            while True:
                begin = starts[first] if first else 0
                end = starts[last] if last < len(starts) else len(text)
                body = text[begin:end]
                chunk = _with_heading(heading, body.strip())
                excess = self._count(chunk) - self.limit
                shorter = _whole(starts, first, last - excess) if excess > 0 else last
                # A piece can have more tokens alone than as part of its word.
                if shorter >= last:
                    break
                last = shorter
            start, stop = end - len(body.lstrip()), begin + len(body.rstrip())
            # After stripping, a chunk may lie entirely within the previous one.
            if stop > max(start, covered):
                yield _chunk(chunk, start, stop)
                covered = stop
            if last >= len(starts):
                return
            back = last - overlap
            repeats = overlap and last != section
            first = _whole(starts, first, _word_start(text, starts, back, back - slack)) if repeats else last

    def _heading(self, title: str | None) -> str:
        """Return the title, shortened to a quarter of a chunk."""
        if not title or not title.strip():
            return ""
        title = " ".join(title[: self.limit * LONGEST_PIECE].split())
        most = self.limit // 4
        pieces = PieceStarts(self._tokenizer, title, self._window)
        pieces.read(most + 1)
        return title if len(pieces.offsets) <= most else title[: pieces.offsets[most]].rstrip()

    def _count(self, text: str) -> int:
        # A batch of one, as in PieceStarts.
        return len(self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)


def _word_start(text: str, starts: list[int], at: int, lowest: int) -> int:
    """Return the word start nearest to ``at``, down to ``lowest``; ``at`` itself if there is none."""
    for candidate in range(at, max(lowest, 1), -1):
        here = starts[candidate]
        # Some tokenizers include the leading space in a word.
        if text[here].isspace() or text[here - 1].isspace():
            return candidate
    return at


def _piece_in(starts: list[int], lowest: int, section: int) -> int | None:
    """Return the piece that a section starts in, or None if that is before the ``lowest``."""
    # Some tokenizers put line feeds and what follows into one piece.
    return bisect_right(starts, section) - 1 if section >= starts[lowest] else None


def _whole(starts: list[int], first: int, at: int) -> int:
    """Return the last piece up to ``at`` that starts a character, but at least the next one after ``first``."""
    # With byte-level tokens several pieces start at one character. A cut must not split it.
    while at > first and starts[at] == starts[at - 1]:
        at -= 1
    if at <= first:
        at = first + 1
        while at < len(starts) and starts[at] == starts[first]:
            at += 1
    return at


def _with_heading(heading: str, body: str) -> str:
    """Put the heading above the body, unless the body starts with it already, as in Markdown."""
    if not heading or body.partition("\n")[0].strip("# ") == heading:
        return body
    return f"{heading}\n{body}"


def _chunk(text: str, start: int, end: int) -> ChunkText:
    return ChunkText(text, blake3(text.encode()).hexdigest(), start, end)
