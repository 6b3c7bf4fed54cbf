"""Text of tables, and the loader of tables as text: CSV and TSV."""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO

from protocol.errors import BrokenDocument
from retriever.loaders.base import LoadedText, decode_whole, joined

_BLOCK_CHARACTERS = 800
"""A chunk of 512 tokens holds at least two blocks of usual text, so each chunk can begin with the column names."""

_DELIMITERS = ",;\t|"
_QUOTED = re.compile(r'"[^"]*"')


def table_blocks(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table as blocks of lines ``a | b | c``, without empty rows.

    The first row has the column names. Every further block repeats it under a heading ``### Rows 40 to 62``.
    """
    header, size, first, number = "", 0, 2, 0
    lines: list[str] = []
    for number, line in enumerate(filter(None, map(_line, rows)), 1):
        if number == 1:
            header = line
            continue
        if lines and size + len(line) > _BLOCK_CHARACTERS:
            yield _block(header, lines, first)
            lines, size, first = [], 0, number
        lines.append(line)
        size += len(line)
    if number:
        yield _block(header, lines, first)


def _line(row: Sequence[str]) -> str:
    return " | ".join(" ".join(cell.split()) for cell in row).rstrip(" |")


def _block(header: str, lines: list[str], first: int) -> str:
    heading = [] if first == 2 else [f"### Rows {first} to {first + len(lines) - 1}"]
    return "\n".join([*heading, header, *lines])


def load_csv(content: bytes) -> LoadedText:
    """Return the rows of a table. Its delimiter is the most frequent one of the first line."""
    text = decode_whole(content)
    first_line = _QUOTED.sub("", text.partition("\n")[0])
    rows = csv.reader(StringIO(text, newline=""), delimiter=max(_DELIMITERS, key=first_line.count), strict=True)
    try:
        return LoadedText(None, joined(table_blocks(rows)))
    except csv.Error as error:
        raise BrokenDocument(f"the CSV cannot be parsed: {error} in line {rows.line_num}") from error
