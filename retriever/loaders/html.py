"""The HTML loader."""

import re
from collections.abc import Iterator

from bs4 import BeautifulSoup
from bs4.element import PreformattedString, Tag
from bs4.exceptions import ParserRejectedMarkup

from protocol.errors import BrokenDocument
from retriever.loaders.base import LoadedText, decode
from retriever.loaders.tables import table_blocks

_NOT_TEXT = ("script", "style", "template", "noscript", "nav", "header", "footer", "aside", "form", "svg", "iframe")
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_BLOCKS = (
    *("address", "article", "blockquote", "br", "dd", "div", "dl", "dt", "figure", "figcaption", "hr", "li", "main"),
    *("ol", "p", "pre", "section", "table", "td", "th", "tr", "ul", *_HEADINGS),
)
_NOT_IN_DATA = ("table", "pre", *_HEADINGS)
"""Elements in tables that only lay out a page."""

_KEEP = str.maketrans("\n \t", "\x00\x01\x02")
_RESTORE = str.maketrans("\x00\x01\x02", "\n \t")
_SPACES = re.compile(r"[^\S\n]+")
_BLANK_LINES = re.compile(r" ?\n(?: ?\n)+ ?")


def load_html(content: bytes) -> LoadedText:
    """Return the visible text of a page, without scripts, styles and navigation.

    Headings and tables are written as ``LoadedText`` says. Every other block is a line.
    """
    try:
        page = BeautifulSoup(decode(content), "html.parser")
    except (ParserRejectedMarkup, RecursionError) as error:
        raise BrokenDocument("the HTML cannot be parsed") from error
    named = page.title or page.h1
    title = _SPACES.sub(" ", named.get_text(" ", strip=True).replace("\n", " ")) if named else None
    if page.title:
        page.title.decompose()
    for element in page.find_all(_NOT_TEXT):
        element.decompose()
    for string in page.find_all(string=True):
        # Protect the white space of <pre> until the end. Elsewhere a newline is just a space.
        if isinstance(string, PreformattedString):
            string.extract()
        elif string.find_parent("pre"):
            string.replace_with(string.translate(_KEEP))
        else:
            string.replace_with(string.replace("\n", " "))
    _write_tables_and_headings(page)
    for element in page.find_all(_BLOCKS):
        element.insert_before("\n")
        element.insert_after("\n")
    text = _SPACES.sub(" ", page.get_text())
    return LoadedText(title or None, _BLANK_LINES.sub("\n\n", text).translate(_RESTORE))


def _write_tables_and_headings(page: BeautifulSoup) -> None:
    for table in page.find_all("table"):
        if not table.find(_NOT_IN_DATA):
            table.string = "\n\n".join(_table_parts(table))
    for heading in page.find_all(_HEADINGS):
        for block in heading.find_all(_BLOCKS):
            block.insert_before(" ")
            block.insert_after(" ")
        if words := heading.get_text().split():
            heading.string = f"\n{'#' * int(heading.name[1])} {' '.join(words)}"


def _table_parts(table: Tag) -> Iterator[str]:
    if table.caption:
        yield " ".join(table.caption.get_text().split())
    yield from table_blocks(
        [cell.get_text(" ", strip=True) for cell in row.find_all(("td", "th"))] for row in table.find_all("tr")
    )
