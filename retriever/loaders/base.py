"""The interface of loaders, and what they share: decoding, joining, cleaning and the refusal of broken files."""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from protocol.errors import BrokenDocument, InvalidEncoding, RagtreeError

MOST_CHARACTERS = 50_000_000
"""The longest text of a document, about 15,000 pages. A small file can repeat a long text many times."""

# The mark of UTF-32 begins with that of UTF-16.
_MARKED = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}

_UNSTORABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


class LoadedText(NamedTuple):
    """A document's text, the title that the document itself contains, and the first line of each page, from 1.

    Headings are lines as in Markdown, ``# Heading``, after a blank line. The chunker prefers to cut before them. A row
    of a table is a line ``a | b | c``.
    """

    title: str | None
    text: str
    pages: tuple[int, ...] = ()


Loader = Callable[[bytes], LoadedText]
"""Reads one format. Raises InvalidEncoding, BrokenDocument or EncryptedDocument. It may return an empty text."""


def decode(content: bytes) -> str:
    """Decode UTF-8, or what a byte order mark says. Raises InvalidEncoding."""
    encoding = next((name for mark, name in _MARKED.items() if content.startswith(mark)), "utf-8-sig")
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        name = "UTF-8" if encoding == "utf-8-sig" else encoding.upper()
        raise InvalidEncoding(f"the text is not {name}: {error.reason} at byte {error.start}") from error


def decode_whole(content: bytes) -> str:
    """Decode as ``decode``, but refuse a binary file. Raises InvalidEncoding or BrokenDocument."""
    text = decode(content)
    if "\x00" in text:
        raise BrokenDocument("the file is binary, not text")
    return text


def joined(parts: Iterable[str]) -> str:
    """Join parts by blank lines, without empty ones. Raises BrokenDocument beyond ``MOST_CHARACTERS``."""
    kept: list[str] = []
    size = 0
    for part in parts:
        if not part:
            continue
        size += len(part) + 2
        if size > MOST_CHARACTERS:
            raise BrokenDocument(f"the document has more than {MOST_CHARACTERS:,} characters")
        kept.append(part)
    return "\n\n".join(kept)


@contextmanager
def parsing(kind: str) -> Iterator[None]:
    """Raise any error of a library as BrokenDocument. Damaged files raise KeyError, zlib.error and many more."""
    try:
        yield
    except (RagtreeError, MemoryError):
        raise
    except Exception as error:
        raise BrokenDocument(f"the {kind} cannot be parsed: {type(error).__name__}") from error


def clean(text: str) -> str:
    """Remove control characters, replace lone surrogates, and normalize newlines to line feeds."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    # Some SQLite functions stop at a NUL, and a lone surrogate has no UTF-8 encoding.
    return _SURROGATES.sub("\ufffd", _UNSTORABLE.sub("", text)).strip()
