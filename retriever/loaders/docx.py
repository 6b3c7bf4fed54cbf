"""The DOCX loader."""

from collections.abc import Iterator
from io import BytesIO
from typing import TYPE_CHECKING

from retriever.loaders.archive import check_office_package
from retriever.loaders.base import LoadedText, joined, parsing
from retriever.loaders.tables import table_blocks

if TYPE_CHECKING:
    from docx.document import Document
    from docx.styles.style import BaseStyle
    from docx.table import Table, _Cell

_MOST_BASES = 10
"""Styles that a style is based on, one on the other. A damaged file can have a circle of them."""


def load_docx(content: bytes) -> LoadedText:
    """Return the body of a document with its headings, lists and tables. The title stands in it or in its properties.

    The title is the first paragraph in the style Title, the property, or the first heading.
    """
    import docx

    check_office_package(content, "DOCX")
    with parsing("DOCX"):
        document = docx.Document(BytesIO(content))
        body = _Body(document)
        text = joined(body.blocks())
        return LoadedText(body.title or document.core_properties.title or body.first_heading, text)


class _Body:
    """The blocks of a document, and what they say about its title once they are read."""

    def __init__(self, document: "Document") -> None:
        self.title = ""
        self.first_heading = ""
        self._document = document
        # Looking up the style of each paragraph would search all styles each time.
        self._styles = {style.style_id: _root_name(style) for style in document.styles if style.name}

    def blocks(self) -> Iterator[str]:
        from docx.table import Table

        for block in self._document.iter_inner_content():
            if isinstance(block, Table):
                yield from table_blocks(_rows(block))
                continue
            text = block.text.strip()
            style = self._styles.get(block._p.style or "", "")
            if text and (style == "Title" or style.startswith("Heading ")):
                text = " ".join(text.split())
                self.first_heading = self.first_heading or text
                if style == "Title":
                    self.title = self.title or text
                text = f"{_marks(style)} {text}"
            elif text and style.startswith("List "):
                text = f"- {text}"
            yield text


def _marks(style: str) -> str:
    level = style.removeprefix("Heading ")
    return "#" * min(int(level), 6) if level.isdecimal() else "#"


def _root_name(style: "BaseStyle") -> str:
    """Return the name of the heading or list style that a style is or is based on; otherwise its own name."""
    base: BaseStyle | None = style
    for _ in range(_MOST_BASES):
        if base is None:
            break
        name = base.name or ""
        if name == "Title" or name.startswith(("Heading ", "List ")):
            return name
        base = getattr(base, "base_style", None)
    return style.name or ""


def _rows(table: "Table") -> Iterator[list[str]]:
    for row in table.rows:
        # A merged cell appears once per column that it covers.
        cells = dict.fromkeys(cell._tc for cell in row.cells)
        texts = {cell._tc: _text(cell) for cell in row.cells}
        yield [texts[cell] for cell in cells]


def _text(cell: "_Cell") -> str:
    from docx.table import Table

    parts: list[str] = []
    for block in cell.iter_inner_content():
        if isinstance(block, Table):
            parts.extend(" | ".join(row) for row in _rows(block))
        else:
            parts.append(block.text)
    return " ".join(parts)
