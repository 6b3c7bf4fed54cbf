"""What a loader gives, and the two steps that every loader shares: decoding and cleaning."""

import re
from collections.abc import Callable
from typing import NamedTuple

from protocol.errors import InvalidEncoding

_UNSTORABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


class LoadedText(NamedTuple):
    """A document's text, and the title that the document itself names."""

    title: str | None
    text: str


Loader = Callable[[bytes], LoadedText]
"""Reads one format. Raises InvalidEncoding, BrokenDocument or EncryptedDocument; an empty text is not its business."""


def decode(content: bytes) -> str:
    """Bytes of UTF-8, with or without a byte order mark, as text. Raises InvalidEncoding."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidEncoding(f"the text is not UTF-8: {error.reason} at byte {error.start}") from error


def clean(text: str) -> str:
    """Text that every layer below can hold: no control characters, no lone surrogates, newlines as line feeds."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    # A NUL would end the string for some of SQLite's functions, and a lone surrogate cannot be encoded at all.
    return _SURROGATES.sub("\ufffd", _UNSTORABLE.sub("", text)).strip()
