"""The loader of Markdown."""

import re

from retriever.loaders.base import LoadedText, decode

_FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n.*?^(?:---|\.\.\.)[ \t]*\r?$\n?", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"^ {0,3}(?:```|~~~).*?(?:^ {0,3}(?:```|~~~)[ \t]*\r?$|\Z)", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(\S.*)$", re.MULTILINE)


def load_markdown(content: bytes) -> LoadedText:
    """Markdown source without its front matter; the title is its first heading."""
    text = _FRONT_MATTER.sub("", decode(content), count=1)
    heading = _HEADING.search(_FENCE.sub("", text))
    return LoadedText(_without_closing(heading.group(1)) if heading else None, text)


def _without_closing(heading: str) -> str:
    """The heading without the number signs that may end it. No pattern does it in a time linear in white space."""
    words = heading.rstrip()
    open_end = words.rstrip("#")
    return open_end.rstrip() if open_end.endswith((" ", "\t")) else words
