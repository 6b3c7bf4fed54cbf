"""The interface of loaders, and what they share: decoding and cleaning."""

import re
from collections.abc import Callable
from typing import NamedTuple

from protocol.errors import InvalidEncoding

_UNSTORABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


class LoadedText(NamedTuple):
    """A document's text, the title that the document itself contains, and the first line of each page, from 1."""

    title: str | None
    text: str
    pages: tuple[int, ...] = ()


Loader = Callable[[bytes], LoadedText]
"""Reads one format. Raises InvalidEncoding, BrokenDocument or EncryptedDocument. It may return an empty text."""


def decode(content: bytes) -> str:
    """Decode UTF-8, with or without a byte order mark. Raises InvalidEncoding."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidEncoding(f"the text is not UTF-8: {error.reason} at byte {error.start}") from error


def clean(text: str) -> str:
    """Remove control characters, replace lone surrogates, and normalize newlines to line feeds."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    # Some SQLite functions stop at a NUL, and a lone surrogate has no UTF-8 encoding.
    return _SURROGATES.sub("\ufffd", _UNSTORABLE.sub("", text)).strip()
