"""The loader of tables as text: CSV and TSV."""

import csv
import re
from io import StringIO

from protocol.errors import BrokenDocument
from retriever.loaders.base import LoadedText, decode_whole, joined
from retriever.loaders.tables import table_blocks

_DELIMITERS = ",;\t|"
_QUOTED = re.compile(r'"[^"]*"')


def load_csv(content: bytes) -> LoadedText:
    """Return the rows of a table. Its delimiter is the most frequent one of the first line."""
    text = decode_whole(content)
    first_line = _QUOTED.sub("", text.partition("\n")[0])
    rows = csv.reader(StringIO(text, newline=""), delimiter=max(_DELIMITERS, key=first_line.count), strict=True)
    try:
        return LoadedText(None, joined(table_blocks(rows)))
    except csv.Error as error:
        raise BrokenDocument(f"the CSV cannot be parsed: {error} in line {rows.line_num}") from error
