"""The XLSX loader."""

import warnings
from collections.abc import Iterator
from datetime import datetime, time
from io import BytesIO
from typing import TYPE_CHECKING

from retriever.loaders.archive import check_office_package
from retriever.loaders.base import LoadedText, joined, parsing
from retriever.loaders.tables import table_blocks

if TYPE_CHECKING:
    from openpyxl import Workbook


def load_xlsx(content: bytes) -> LoadedText:
    """Return the visible sheets as tables, each under its name, with the results of formulas as last saved."""
    from openpyxl import load_workbook

    check_office_package(content, "XLSX")
    # openpyxl warns of what it does not read, such as drawings.
    with parsing("XLSX"), warnings.catch_warnings(action="ignore"):
        workbook = load_workbook(BytesIO(content), read_only=True, data_only=True, keep_links=False)
        return LoadedText(workbook.properties.title, joined(_blocks(workbook)))


def _blocks(workbook: "Workbook") -> Iterator[str]:
    for sheet in workbook.worksheets:
        if sheet.sheet_state != "visible":
            continue
        # A file may declare any size, and every row would be filled up to it.
        sheet.reset_dimensions()
        blocks = table_blocks([_cell(value) for value in row] for row in sheet.iter_rows(values_only=True))
        for number, block in enumerate(blocks):
            if number == 0:
                yield f"# {sheet.title}"
            yield block


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float):
        # Excel shows no more digits.
        return f"{value:.15g}"
    if isinstance(value, datetime) and value.time() == time():
        return value.date().isoformat()
    return str(value)
