"""Where the sections of a text begin, before which the chunker prefers to cut."""

import re

_MODIFIER = (
    r"(?:export|default|public|private|protected|internal|pub(?:\(\w+\))?"
    r"|static|abstract|final|sealed|async|unsafe|data)"
)
_DEFINITION = r"(?:def|class|func|function|fn|fun|interface|struct|enum|trait|impl|module|namespace|CREATE)"
_MARK = r"(?:[@#]|//|/\*| \*|--).*\n"
"""A line with a decorator or a comment, which belongs to the definition below it."""

_FENCED = r"^ {0,3}(?:```|~~~)[\s\S]*?(?:^ {0,3}(?:```|~~~)[ \t]*$|\Z)"
_SECTION = re.compile(
    rf"(?P<gap>\n[ \t]*\n)(?=#{{1,6}}[ \t]+\S|(?:{_MARK})*(?:{_MODIFIER} )*{_DEFINITION}[ \t]+\S)|{_FENCED}",
    re.MULTILINE,
)


def section_starts(text: str) -> list[int]:
    """Return the offsets of Markdown headings and of top-level definitions in source code, after a blank line.

    Fenced code in Markdown is part of its section. Takes linear time.
    """
    return [match.end() for match in _SECTION.finditer(text) if match["gap"]]
