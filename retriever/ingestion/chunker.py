"""The chunker: cuts documents into chunks that the embedder sees whole."""

from bisect import bisect_right
from collections.abc import Iterator

from blake3 import blake3
from tokenizers import Tokenizer

from protocol.errors import ConfigError
from retriever.ingestion.section_starts import section_starts
from retriever.settings import ChunkSettings
from retriever.store.prepared_chunk import ChunkText

_LONGEST_PIECE = 32
"""Characters. Some tokenizers make one unknown token of a word of any length, but the LLM pays for all of it."""


class Chunker:
    """Cuts texts by tokens, preferably before a section in the second half of a chunk, otherwise at word boundaries.

    A chunk repeats the end of the previous one, unless it starts with a section.

    Every chunk starts with the document's title, if there is one, so that the prompt and the embedding both contain it.
    A chunk has at most ``limit`` tokens, title included. Every character except white space is part of some chunk.
    Raises ConfigError if the limit is below 8 tokens or the overlap exceeds half a chunk.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, settings: ChunkSettings) -> None:
        self.limit = min(settings.size, max_tokens)
        self._overlap = min(settings.overlap, self.limit // 2)
        self._tokenizer = tokenizer
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
        heading = self._heading(title)
        # Most documents are short, and one pass is enough for them.
        if len(text) <= self.limit * _LONGEST_PIECE and text.strip():
            whole = _with_heading(heading, text.strip())
            if self._count(whole) <= self.limit:
                start = len(text) - len(text.lstrip())
                return [_chunk(whole, start, start + len(text.strip()))]
        return list(self._cut(text, heading))

    def _cut(self, text: str, heading: str) -> Iterator[ChunkText]:
        starts = self._piece_starts(text)
        # Some tokenizers put line feeds and what follows into one piece.
        sections = [bisect_right(starts, offset) - 1 for offset in section_starts(text)]
        room = self.limit - (self._count(heading) if heading else 0)
        overlap = min(self._overlap, room // 2)
        slack = room // 8
        first = covered = 0
        while first < len(starts):
            last = min(first + room, len(starts))
            section = None
            if last < len(starts):
                section = _last_between(sections, first + room // 2, last)
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
        title = " ".join(title.split())
        starts = self._piece_starts(title)
        most = self.limit // 4
        return title if len(starts) <= most else title[: starts[most]].rstrip()

    def _count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _piece_starts(self, text: str) -> list[int]:
        """Return the offsets of the pieces: each token, with overlong tokens split."""
        starts: list[int] = []
        for start, end in self._tokenizer.encode(text, add_special_tokens=False).offsets:
            starts.extend(range(start, max(end, start + 1), _LONGEST_PIECE))
        return starts


def _word_start(text: str, starts: list[int], at: int, lowest: int) -> int:
    """Return the word start nearest to ``at``, down to ``lowest``; ``at`` itself if there is none."""
    for candidate in range(at, max(lowest, 1), -1):
        here = starts[candidate]
        # Some tokenizers include the leading space in a word.
        if text[here].isspace() or text[here - 1].isspace():
            return candidate
    return at


def _last_between(pieces: list[int], lowest: int, highest: int) -> int | None:
    """Return the last of the pieces from ``lowest`` to ``highest``."""
    at = bisect_right(pieces, highest) - 1
    return pieces[at] if at >= 0 and pieces[at] >= lowest else None


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
