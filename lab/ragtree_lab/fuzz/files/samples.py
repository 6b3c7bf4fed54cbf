"""Small valid documents of every media type that loaders read."""

import csv
import html
import io
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from random import Random
from typing import NamedTuple

import docx
import openpyxl
import pptx
from reportlab.pdfgen.canvas import Canvas

OFFICE = "application/vnd.openxmlformats-officedocument."
_WORDS = 'ledger salt mill barrel river harvest Zürich 東京 naïve <b> & "quoted" 1,5 -7e3 2026-11-28 ﬁne\u00ad'.split()  # noqa: SIM905


_TIME = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class File(NamedTuple):
    """A document as it is uploaded."""

    media_type: str
    suffix: str
    content: bytes


def _sentence(draws: Random, words: int = 12) -> str:
    return " ".join(draws.choice(_WORDS) for _ in range(words)) + "."


def _sentences(draws: Random) -> list[str]:
    return [_sentence(draws) for _ in range(draws.randint(1, 6))]


def _plain(draws: Random) -> bytes:
    encoding = draws.choice(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp1252", "shift_jis", "gb18030"])
    return "\n\n".join(_sentences(draws)).encode(encoding, "replace")


def _markdown(draws: Random) -> bytes:
    head = "---\ntitle: A *title*\n---\n" * draws.randint(0, 1)
    table = "| a | b |\n|---|---|\n" + "".join(
        f"| {draws.choice(_WORDS)} | {n} |\n" for n in range(draws.randint(0, 5))
    )
    return (
        head + f"# {_sentence(draws, 3)}\n\n" + "\n\n".join(_sentences(draws)) + f"\n\n{table}\n```py\nx = 1\n```\n"
    ).encode()


def _html(draws: Random) -> bytes:
    body = "".join(f"<p>{html.escape(text)}</p>" for text in _sentences(draws))
    table = "<table>" + "<tr><td>1<td colspan=3>b" * draws.randint(0, 4) + "</table>"
    return (
        f"<!doctype html><title>Mill</title><body><main><h1>Mill</h1>{body}{table}<script>x()</script></main>".encode()
    )


def _xhtml(draws: Random) -> bytes:
    body = "".join(f"<p>{html.escape(text)}</p>" for text in _sentences(draws))
    return f'<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><head><title>M</title></head><body>{body}</body></html>'.encode()


def _csv(draws: Random, delimiter: str = ",") -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter)
    writer.writerow(["name", "barrels", "note"])
    writer.writerows(
        [draws.choice(_WORDS), draws.randint(-9, 10**9), _sentence(draws, 3)] for _ in range(draws.randint(0, 20))
    )
    return out.getvalue().encode()


def _tsv(draws: Random) -> bytes:
    return _csv(draws, "\t")


def _json(draws: Random) -> bytes:
    rows = [
        {"name": draws.choice(_WORDS), "n": draws.random(), "note": {"deep": [_sentence(draws, 4), None, True]}}
        for _ in range(draws.randint(0, 6))
    ]
    return json.dumps(draws.choice([rows, {"rows": rows}, rows[:1]]), ensure_ascii=draws.random() < 0.5).encode()


def _code(draws: Random) -> bytes:
    return "\n\n".join(
        f"def f{n}(x):\n    # {_sentence(draws, 4)}\n    return x" for n in range(draws.randint(1, 6))
    ).encode()


def _pdf(draws: Random) -> bytes:
    out = io.BytesIO()
    canvas = Canvas(out, pageCompression=draws.randint(0, 1), invariant=True)
    canvas.setTitle("A mill")
    for _ in range(draws.randint(1, 3)):
        for number, text in enumerate(_sentences(draws)):
            canvas.drawString(60, 780 - 20 * number, text.encode("latin-1", "replace").decode("latin-1"))
        canvas.showPage()
    canvas.save()
    return out.getvalue()


def _docx(draws: Random) -> bytes:
    document = docx.Document()
    document.add_heading("A mill", 1)
    for text in _sentences(draws):
        document.add_paragraph(text)
    table = document.add_table(2, 2)
    table.cell(0, 0).text = _sentence(draws, 2)
    return _saved(document.save)


def _pptx(draws: Random) -> bytes:
    presentation = pptx.Presentation()
    for text in _sentences(draws)[:2]:
        slide = presentation.slides.add_slide(presentation.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text = "A mill", text
    return _saved(presentation.save)


def _xlsx(draws: Random) -> bytes:
    book = openpyxl.Workbook()
    for _ in range(draws.randint(1, 12)):
        book.active.append([draws.choice(_WORDS), draws.random(), _sentence(draws, 3), None, True])
    if draws.random() < 0.3:
        book.active.merge_cells("A1:B2")
    return _saved(book.save)


_CONTAINER = """<?xml version="1.0"?>
<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0"><rootfiles>
<rootfile full-path="a.opf" media-type="application/oebps-package+xml"/></rootfiles></container>"""
_PACKAGE = """<?xml version="1.0"?>
<package xmlns="http://www.idpf.org/2007/opf" version="3.0">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>Mill</dc:title></metadata>
<manifest><item id="a" href="a.xhtml" media-type="application/xhtml+xml"/></manifest>
<spine><itemref idref="a"/></spine></package>"""


def _epub(draws: Random) -> bytes:
    entries = {
        "mimetype": b"application/epub+zip",
        "META-INF/container.xml": _CONTAINER.encode(),
        "a.opf": _PACKAGE.encode(),
        "a.xhtml": _xhtml(draws),
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _saved(save: Callable[[io.BytesIO], object]) -> bytes:
    """The package that ``save`` writes, without the time at which it was written: equal seeds give equal files."""
    written, out = io.BytesIO(), io.BytesIO()
    save(written)
    with zipfile.ZipFile(written) as source, zipfile.ZipFile(out, "w") as archive:
        for info in source.infolist():
            content = _TIME.sub(b"2026-01-01T00:00:00Z", source.read(info))
            archive.writestr(zipfile.ZipInfo(info.filename), content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


MAKERS: Mapping[str, tuple[str, Callable[[Random], bytes]]] = {
    ".txt": ("text/plain", _plain),
    ".md": ("text/markdown", _markdown),
    ".html": ("text/html", _html),
    ".xhtml": ("application/xhtml+xml", _xhtml),
    ".csv": ("text/csv", _csv),
    ".tsv": ("text/tab-separated-values", _tsv),
    ".json": ("text/json", _json),
    ".py": ("text/x-source", _code),
    ".pdf": ("application/pdf", _pdf),
    ".docx": (f"{OFFICE}wordprocessingml.document", _docx),
    ".pptx": (f"{OFFICE}presentationml.presentation", _pptx),
    ".xlsx": (f"{OFFICE}spreadsheetml.sheet", _xlsx),
    ".epub": ("application/epub+zip", _epub),
}
"""By suffix, the media type and what makes a document of it."""


def sample(suffix: str, draws: Random) -> File:
    """A valid document with random content."""
    media_type, make = MAKERS[suffix]
    return File(media_type, suffix, make(draws))
