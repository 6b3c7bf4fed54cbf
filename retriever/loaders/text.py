"""The loaders of text that is read as it is: plain text, Markdown and source code."""

import re

from retriever.loaders.base import LoadedText, decode, decode_whole

_FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n.*?^(?:---|\.\.\.)[ \t]*\r?$\n?", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"^ {0,3}(?:```|~~~).*?(?:^ {0,3}(?:```|~~~)[ \t]*\r?$|\Z)", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(\S.*)$", re.MULTILINE)

SOURCE_CODE = "text/x-source"
"""The media type of source code in any language."""

SUFFIXES = (
    *(".py", ".pyi", ".js", ".mjs", ".cjs", ".jsx", ".ts", ".tsx", ".java", ".kt", ".scala", ".groovy", ".go", ".rs"),
    *(".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".cs", ".swift", ".dart", ".rb", ".php", ".pl", ".lua", ".r", ".jl"),
    *(".ex", ".exs", ".hs", ".clj", ".sh", ".bash", ".ps1", ".sql", ".proto", ".tf", ".yaml", ".yml", ".toml", ".ini"),
)
"""The suffixes of files with this media type."""


def load_text(content: bytes) -> LoadedText:
    """Return the text unchanged, without a title."""
    return LoadedText(None, decode(content))


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


def load_source_code(content: bytes) -> LoadedText:
    """Return the text unchanged, without a title. The chunker knows how definitions begin."""
    return LoadedText(None, decode_whole(content))
