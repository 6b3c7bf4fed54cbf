"""The Markdown loader."""

import re

from retriever.loaders.base import LoadedText, decode

_FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n.*?^(?:---|\.\.\.)[ \t]*\r?$\n?", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"^ {0,3}(?:```|~~~).*?(?:^ {0,3}(?:```|~~~)[ \t]*\r?$|\Z)", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(\S.*)$", re.MULTILINE)


def load_markdown(content: bytes) -> LoadedText:
    """Return Markdown source without its front matter. The title is the first heading."""
    text = _FRONT_MATTER.sub("", decode(content), count=1)
    heading = _HEADING.search(_FENCE.sub("", text))
    return LoadedText(_without_closing(heading.group(1)) if heading else None, text)


def _without_closing(heading: str) -> str:
    """Return a heading without its closing number signs, in linear time. A regular expression would not be linear."""
    words = heading.rstrip()
    open_end = words.rstrip("#")
    return open_end.rstrip() if open_end.endswith((" ", "\t")) else words
