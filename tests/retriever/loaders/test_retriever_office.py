"""DOCX, PPTX and XLSX, and what the three refuse alike."""

import time
from datetime import date, datetime
from io import BytesIO

import openpyxl
import pytest
from docx import Document
from docx.enum.style import WD_STYLE_TYPE
from made_archives import flagged_encrypted, unzipped, with_files, zipped
from pptx import Presentation
from pptx.util import Inches

from protocol.errors import BrokenDocument, EmptyDocument, EncryptedDocument
from retriever.loaders import archive, base
from retriever.loaders.registry import LoaderRegistry, media_type_of
from retriever.loaders.sandbox import SandboxedLoaders
from retriever.settings import LoaderSettings

COMPOUND_FILE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504)
BOMB = """<?xml version="1.0"?><!DOCTYPE d [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>"""


def load(content: bytes, kind: str):
    media_type = media_type_of(f"file.{kind}")
    assert media_type
    return LoaderRegistry().load(content, media_type)


def saved(document) -> bytes:
    file = BytesIO()
    document.save(file)
    return file.getvalue()


def docx(text: str = "some words") -> bytes:
    document = Document()
    document.add_paragraph(text)
    return saved(document)


def pptx(title: str = "A slide") -> bytes:
    presentation = Presentation()
    presentation.slides.add_slide(presentation.slide_layouts[5]).shapes.title.text = title
    return saved(presentation)


def workbook(*rows) -> openpyxl.Workbook:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    return book


def xlsx(*rows) -> bytes:
    return saved(workbook(*rows or [("a", "b")]))


SMALL = {"docx": docx(), "pptx": pptx(), "xlsx": xlsx()}
MAIN_PARTS = {"docx": "word/document.xml", "pptx": "ppt/presentation.xml", "xlsx": "xl/worksheets/sheet1.xml"}
every_kind = pytest.mark.parametrize("kind", SMALL)


def test_docx_keeps_headings_lists_and_tables_in_order():
    document = Document()
    document.add_heading("The report", 0)
    document.add_heading("First part", 1)
    document.add_paragraph("Some words.")
    document.add_paragraph("an item", style="List Bullet")
    table = document.add_table(2, 3)
    for cell, text in zip(table._cells, ["name", "size", "note", "ant", "1", "two\nlines"], strict=True):
        cell.text = text
    document.add_heading("A detail", 2)
    document.add_paragraph("More.")
    loaded = load(saved(document), "docx")
    assert loaded.title == "The report"
    assert loaded.text.split("\n\n") == [
        *("# The report", "# First part", "Some words.", "- an item"),
        *("name | size | note\nant | 1 | two lines", "## A detail", "More."),
    ]


def test_docx_heading_style_is_found_through_the_styles_it_is_based_on():
    document = Document()
    style = document.styles.add_style("Chapter", WD_STYLE_TYPE.PARAGRAPH)
    style.base_style = document.styles["Heading 2"]
    document.add_paragraph("Inherited", style=style)
    assert load(saved(document), "docx")[:2] == ("Inherited", "## Inherited")


def test_docx_style_based_on_itself_ends():
    document = Document()
    style = document.styles.add_style("Circle", WD_STYLE_TYPE.PARAGRAPH)
    style.base_style = style
    document.add_paragraph("text", style=style)
    assert load(saved(document), "docx").text == "text"


def test_docx_title_property_is_used_without_a_title_in_the_text():
    document = Document()
    document.core_properties.title = "From the properties"
    document.add_heading("A heading", 1)
    assert load(saved(document), "docx").title == "From the properties"


def test_docx_merged_cell_is_read_once_and_nested_table_too():
    document = Document()
    table = document.add_table(2, 3)
    table.cell(0, 0).merge(table.cell(0, 1)).text = "merged"
    table.cell(0, 2).text = "single"
    table.cell(1, 0).add_table(1, 1).cell(0, 0).text = "inner"
    assert load(saved(document), "docx").text == "merged | single\ninner"


def test_pptx_gives_slides_tables_groups_and_notes():
    presentation = Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[1])
    slide.shapes.title.text = "The talk"
    slide.placeholders[1].text = "one point\nanother"
    table = slide.shapes.add_table(2, 2, 0, 0, Inches(1), Inches(1)).table
    for number, text in enumerate(["key", "value", "a", "1"]):
        table.cell(number // 2, number % 2).text = text
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, 1, 1).text_frame.text = "in a group"
    slide.notes_slide.notes_text_frame.text = "say this"
    untitled = presentation.slides.add_slide(presentation.slide_layouts[6])
    untitled.shapes.add_textbox(0, 0, 1, 1).text_frame.text = "no title"
    loaded = load(saved(presentation), "pptx")
    assert loaded.title == "The talk"
    assert loaded.text.split("\n\n") == [
        *("# The talk", "one point\nanother", "key | value\na | 1", "in a group", "Notes: say this"),
        *("# Slide 2", "no title"),
    ]


def test_xlsx_gives_visible_sheets_as_tables():
    book = workbook(["name", "when", "share"], [], ["ant", datetime(2024, 5, 1), 0.1 + 0.2], ["bee", date(2024, 5, 2)])
    book.active.title = "Insects"
    book.active.append(["sum", "=1+1", True])
    book.create_sheet("Empty")
    hidden = book.create_sheet("Hidden")
    hidden.append(["secret"])
    hidden.sheet_state = "hidden"
    book.properties.title = "Numbers"
    loaded = load(saved(book), "xlsx")
    assert loaded.title == "Numbers"
    # No program has computed the formula.
    assert loaded.text == ("# Insects\n\nname | when | share\nant | 2024-05-01 | 0.3\nbee | 2024-05-02\nsum |  | TRUE")


def test_long_table_repeats_its_column_names():
    blocks = load(xlsx(["number", "square"], *([n, n * n] for n in range(2, 400))), "xlsx").text.split("\n\n")
    assert blocks[0] == "# Sheet"
    assert blocks[1].startswith("number | square\n2 | 4\n")
    assert len(blocks) > 4
    for block in blocks[2:]:
        heading, names, first, *_, last = block.splitlines()
        assert (names, heading) == ("number | square", f"### Rows {first.split()[0]} to {last.split()[0]}")


@pytest.mark.parametrize("kind", ["docx", "pptx"])
def test_document_without_text_is_empty(kind):
    with pytest.raises(EmptyDocument):
        load(saved({"docx": Document, "pptx": Presentation}[kind]()), kind)


@every_kind
def test_cut_off_file_is_refused(kind):
    with pytest.raises(BrokenDocument, match="cannot be parsed: BadZipFile"):
        load(SMALL[kind][: len(SMALL[kind]) // 2], kind)


@every_kind
@pytest.mark.parametrize("part", ["<not xml", "<a/>", ""], ids=["malformed", "foreign", "empty"])
def test_damaged_part_is_refused(kind, part):
    main = {**MAIN_PARTS, "xlsx": "xl/workbook.xml"}[kind]
    # openpyxl takes a foreign part for a workbook without sheets.
    with pytest.raises((BrokenDocument, EmptyDocument), match=r"cannot be parsed|no text"):
        load(with_files(SMALL[kind], {main: part}), kind)


@every_kind
def test_changed_bytes_are_noticed(kind):
    content = SMALL[kind]
    outcomes = set()
    for at in range(30, len(content), len(content) // 40):
        damaged = content[:at] + bytes(byte ^ 0xFF for byte in content[at : at + 20]) + content[at + 20 :]
        try:
            outcomes.add(bool(load(damaged, kind).text))
        except (BrokenDocument, EmptyDocument, EncryptedDocument) as error:
            outcomes.add(error.code)
    assert "broken_document" in outcomes


@every_kind
@pytest.mark.parametrize(
    ("content", "message"),
    [(b"%PDF-1.7 text", "is a PDF, not a"), (b"just text", "is not a"), (zipped({"a": "b"}), "an archive, not a")],
    ids=["pdf", "text", "archive"],
)
def test_file_with_the_wrong_suffix_is_refused(kind, content, message):
    with pytest.raises(BrokenDocument, match=message):
        load(content, kind)


@pytest.mark.parametrize(("kind", "other"), [("docx", "xlsx"), ("pptx", "docx"), ("xlsx", "pptx")])
def test_office_file_of_another_kind_is_refused(kind, other):
    with pytest.raises(BrokenDocument, match="another kind"):
        load(SMALL[other], kind)


@every_kind
def test_password_is_noticed(kind):
    # Office keeps an encrypted file as a stream of this name.
    with pytest.raises(EncryptedDocument, match="password"):
        load(COMPOUND_FILE + "EncryptedPackage".encode("utf-16-le"), kind)
    with pytest.raises(EncryptedDocument, match="password"):
        load(flagged_encrypted(SMALL[kind]), kind)


@every_kind
def test_format_of_before_2007_is_refused(kind):
    with pytest.raises(BrokenDocument, match="before 2007"):
        load(COMPOUND_FILE + "WordDocument".encode("utf-16-le"), kind)


@every_kind
def test_macros_are_refused(kind):
    with pytest.raises(BrokenDocument, match="macros"):
        load(with_files(SMALL[kind], {"word/vbaProject.bin": b"\x00"}), kind)
    types = unzipped(SMALL[kind])["[Content_Types].xml"]
    for part in (b"document", b"presentation", b"sheet"):
        types = types.replace(b"ml." + part + b".main+xml", b"." + part + b".macroEnabled.main+xml")
    with pytest.raises(BrokenDocument, match="macros"):
        load(with_files(SMALL[kind], {"[Content_Types].xml": types}), kind)


@every_kind
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_entities_are_refused_before_parsing(kind, encoding):
    part = unzipped(SMALL[kind])[MAIN_PARTS[kind]].decode()
    body = part.partition("?>")[2]
    with pytest.raises(BrokenDocument, match="document type"):
        load(with_files(SMALL[kind], {MAIN_PARTS[kind]: (BOMB + body).encode(encoding)}), kind)


@every_kind
def test_entities_after_a_long_comment_are_not_expanded(kind):
    part = unzipped(SMALL[kind])[MAIN_PARTS[kind]].decode()
    body = part.partition("?>")[2].replace("some words", "&b;").replace("A slide", "&b;")
    late = f"<?xml version='1.0'?><!--{'x' * 100_000}-->" + BOMB.partition("?>")[2] + body
    try:
        text = load(with_files(SMALL[kind], {MAIN_PARTS[kind]: late}), kind).text
    except (BrokenDocument, EmptyDocument):
        return
    assert "aaaa" not in text


@every_kind
def test_archive_bomb_is_refused_before_unpacking(kind):
    bomb = with_files(SMALL[kind], {"word/media/big.bin": bytes(archive.MOST_BYTES)})
    assert len(bomb) < 1_000_000
    with pytest.raises(BrokenDocument, match="unpacks to more than 256 MiB"):
        load(bomb, kind)


@every_kind
def test_archive_that_lies_about_its_size_is_refused(kind):
    content = bytearray(with_files(SMALL[kind], {"[Content_Types].xml": bytes(10_000_000)}))
    entry = content.rfind(b"[Content_Types].xml") - 46
    content[entry + 24 : entry + 28] = (100).to_bytes(4, "little")
    with pytest.raises(BrokenDocument, match="cannot be parsed: BadZipFile"):
        load(bytes(content), kind)


@every_kind
def test_archive_of_too_many_files_is_refused(kind):
    with pytest.raises(BrokenDocument, match="more than 10,000 files"):
        load(with_files(SMALL[kind], {f"{n}": "" for n in range(archive.MOST_FILES)}), kind)


def test_repeated_text_is_bounded(monkeypatch):
    monkeypatch.setattr(base, "MOST_CHARACTERS", 100_000)
    with pytest.raises(BrokenDocument, match="more than 100,000 characters"):
        load(xlsx(*(["x" * 1000] for _ in range(200))), "xlsx")


def test_declared_size_and_gaps_of_a_sheet_cost_little():
    content = xlsx(*[["a"]] * 2000)
    sheet = unzipped(content)[MAIN_PARTS["xlsx"]].replace(b'ref="A1:A2000"', b'ref="A1:XFD1048576"')
    sheet = sheet.replace(b'<row r="2000"', b'<row r="500000"').replace(b'r="A2000"', b'r="B500000"')
    assert b"XFD1048576" in sheet
    assert b"B500000" in sheet
    began = time.process_time()
    text = load(with_files(content, {MAIN_PARTS["xlsx"]: sheet}), "xlsx").text
    # Rows of the declared width would take seconds.
    assert time.process_time() - began < 2
    assert text.count("\na") > 1999
    assert text.endswith("\n | a")


def test_sheet_of_very_many_rows_is_refused_within_the_limits_and_the_next_file_is_read():
    cells = '<row><c t="inlineStr"><is><t>cell</t></is></c></row>' * 1_500_000
    sheet = f'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>{cells}</sheetData></worksheet>'
    many = with_files(SMALL["xlsx"], {MAIN_PARTS["xlsx"]: sheet})
    assert len(many) < 1_000_000
    sandboxed = SandboxedLoaders(LoaderSettings(cpu_s=1, memory_mib=512))
    read = sandboxed.loaders[media_type_of("a.xlsx")]
    try:
        with pytest.raises(BrokenDocument, match="takes more than 1 s"):
            read(many)
        assert read(SMALL["xlsx"]).text == "# Sheet\n\na | b"
    finally:
        sandboxed.close()
