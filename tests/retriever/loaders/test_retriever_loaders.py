from io import BytesIO

import pytest
from pypdf import PdfReader, PdfWriter
from retriever_cases import pdf

from protocol.errors import BrokenDocument, EmptyDocument, EncryptedDocument, InvalidEncoding, UnsupportedMediaType
from retriever.loaders.base import LoadedText
from retriever.loaders.registry import JSON_LINES, LoaderRegistry, media_type_of

LOADERS = LoaderRegistry()


def encrypted(content: bytes, password: str) -> bytes:
    writer = PdfWriter(clone_from=PdfReader(BytesIO(content)))
    writer.encrypt(user_password=password, owner_password="owner", algorithm="AES-256")
    file = BytesIO()
    writer.write(file)
    return file.getvalue()


def test_plain_text_loses_only_characters_that_cannot_be_stored():
    loaded = LOADERS.load(b"\xef\xbb\xbfone\x00 two\r\nthree\x07\n", "Text/Plain; charset=utf-8")
    assert loaded == LoadedText(None, "one two\nthree")


def test_markdown_title_is_the_first_heading_outside_code():
    source = b"---\ntitle: hidden\n---\n```sh\n# a comment\n```\n\n## The *Title* ##\ntext\n"
    loaded = LOADERS.load(source, "text/markdown")
    assert loaded.title == "The *Title*"
    assert "hidden" not in loaded.text
    assert "# a comment" in loaded.text


@pytest.mark.parametrize(
    ("heading", "title"),
    [
        ("# C#", "C#"),
        ("# C# #", "C#"),
        ("#  spaced\t#  ", "spaced"),
        ("# one ## two", "one ## two"),
        ("# a" + " " * 200_000 + "b", "a b"),
    ],
)
def test_heading_is_parsed_in_linear_time(heading, title):
    assert LOADERS.load(f"{heading}\n\ntext\n".encode(), "text/markdown").title == title


def test_leading_rule_is_not_front_matter():
    assert LOADERS.load(b"---\nonly a rule, then text", "text/markdown").text == "---\nonly a rule, then text"


def test_html_gives_the_visible_text():
    page = b"""<html><head><title>A
      page</title><style>p {}</style></head><body><nav>menu</nav><script>alert(1)</script>
      <h1>Head</h1><p>one <b>bold</b>
      word</p><pre>a
  b</pre><!-- not this --></body></html>"""
    loaded = LOADERS.load(page, "text/html")
    assert loaded.title == "A page"
    assert loaded.text.split("\n\n")[:2] == ["# Head", "one bold word"]
    assert "a\n  b" in loaded.text
    for unseen in ("menu", "alert", "p {}", "not this"):
        assert unseen not in loaded.text


def test_pdf_gives_the_text_of_all_pages():
    loaded = LOADERS.load(pdf("first page", "second page", title="Report"), "application/pdf")
    assert loaded.title == "Report"
    assert loaded.text == "first page\n\nsecond page"


@pytest.mark.parametrize(
    ("pages", "first_lines"),
    [(("one",), (1,)), (("one", "two", "three"), (1, 3, 5)), (("", "", "three", "", "five"), (1, 1, 1, 3, 5))],
)
def test_pdf_knows_the_first_line_of_each_page(pages, first_lines):
    loaded = LOADERS.load(pdf(*pages), "application/pdf")
    assert loaded.pages == first_lines
    for page, first in zip(pages, loaded.pages, strict=True):
        assert not page or loaded.text.split("\n")[first - 1] == page


def test_pdf_encrypted_for_printing_only_is_read():
    assert LOADERS.load(encrypted(pdf("open"), ""), "application/pdf").text == "open"


def test_pdf_with_a_password_is_refused():
    with pytest.raises(EncryptedDocument):
        LOADERS.load(encrypted(pdf("secret"), "password"), "application/pdf")


@pytest.mark.parametrize("content", [b"", b"no pdf", b"%PDF-1.7\n%%EOF", pdf("text")[:300]])
def test_broken_pdf_is_refused(content):
    with pytest.raises((BrokenDocument, EmptyDocument)) as caught:
        LOADERS.load(content, "application/pdf")
    assert caught.type is BrokenDocument


@pytest.mark.parametrize("cut", range(50, 1400, 97))
def test_damaged_pdf_raises_only_broken_document(cut):
    content = bytearray(pdf("some text", "more text"))
    content[cut : cut + 40] = b"\xff" * 40
    try:
        outcome = LOADERS.load(bytes(content), "application/pdf").text
    except (BrokenDocument, EmptyDocument, EncryptedDocument) as error:
        outcome = error.message
    assert outcome


@pytest.mark.parametrize("media_type", ["text/plain", "text/markdown", "text/html"])
def test_text_other_than_utf8_is_refused(media_type):
    with pytest.raises(InvalidEncoding):
        LOADERS.load("Grüße".encode("latin-1"), media_type)


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (b"", "text/plain"),
        (b" \n\t\x00", "text/plain"),
        (b"---\na: 1\n---\n", "text/markdown"),
        (b"<html><script>code()</script></html>", "text/html"),
        (pdf(""), "application/pdf"),
    ],
)
def test_document_without_text_is_refused(content, media_type):
    with pytest.raises(EmptyDocument):
        LOADERS.load(content, media_type)


@pytest.mark.parametrize("media_type", ["", "application/octet-stream", "Application/Octet-Stream; x=y"])
def test_document_without_a_type_is_read_by_its_name(media_type):
    assert LOADERS.load(b"<p>Hi<script>x</script>", media_type, "a/Page.HTML").text == "Hi"
    assert LOADERS.load(b'{"a": 1}', media_type, "a.json").text == "a: 1"
    for name in ("", "picture.gif", "README", "lines.jsonl"):
        with pytest.raises(UnsupportedMediaType, match=r"\.docx, \.epub.* and source code"):
            LOADERS.load(b"x", media_type, name)


def test_known_type_counts_more_than_the_name():
    assert LOADERS.load(b"# Not a title", "text/plain", "a.md") == LoadedText(None, "# Not a title")


def test_unknown_media_type_is_refused():
    with pytest.raises(UnsupportedMediaType, match="image/png"):
        LOADERS.load(b"", "image/png")


@pytest.mark.parametrize(
    ("name", "media_type"),
    [("a/b.MD", "text/markdown"), ("x.htm", "text/html"), ("x.jsonl", JSON_LINES), ("x.png", None), ("Makefile", None)],
)
def test_media_type_of_a_file_name(name, media_type):
    assert media_type_of(name) == media_type
