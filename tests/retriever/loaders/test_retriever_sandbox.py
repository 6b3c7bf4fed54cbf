"""Documents that take too long to read are refused in bounded time, and later documents are read."""

from io import BytesIO

import psutil
import pytest
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from protocol.errors import BrokenDocument, EncryptedDocument, InvalidEncoding
from retriever.loaders.registry import LOADERS, media_type_of
from retriever.loaders.sandbox import SandboxedLoaders
from retriever.settings import LoaderSettings

PAGE = b"<title>A page</title><p>one</p>"

LOADERS_CHANGED = pytest.mark.prove("retriever/loaders/", "subprocesses/")


@pytest.fixture
def loaders():
    sandboxed = SandboxedLoaders(LoaderSettings(cpu_s=1, memory_mib=512))
    yield sandboxed.loaders
    sandboxed.close()


def written(writer: PdfWriter) -> bytes:
    file = BytesIO()
    writer.write(file)
    return file.getvalue()


def drawing(operations: bytes, forms: dict[str, object]) -> DecodedStreamObject:
    stream = DecodedStreamObject()
    stream.set_data(operations)
    stream[NameObject("/Type")] = NameObject("/XObject")
    stream[NameObject("/Subtype")] = NameObject("/Form")
    stream[NameObject("/Resources")] = resources(forms)
    return stream


def resources(forms: dict[str, object]) -> DictionaryObject:
    named = DictionaryObject({NameObject(name): form for name, form in forms.items()})
    return DictionaryObject({NameObject("/XObject"): named})


def nested_forms(pages: int) -> bytes:
    """Pages with exponentially nested forms, in a few kilobytes, which pypdf does not limit."""
    writer = PdfWriter()
    draw = b"/F Do " * 10
    form = writer._add_object(drawing(b"BT (x) Tj ET", {}))
    for _ in range(4):
        form = writer._add_object(drawing(draw, {"/F": form}))
    contents = writer._add_object(drawing(draw, {}))
    for _ in range(pages):
        page = writer.add_blank_page(100, 100)
        page[NameObject("/Resources")] = resources({"/F": form})
        page[NameObject("/Contents")] = contents
    return written(writer)


@pytest.mark.parametrize(
    ("media_type", "content"),
    [
        pytest.param("application/pdf", nested_forms(100), id="nested forms", marks=LOADERS_CHANGED),
        pytest.param("text/html", b"<p>x" * 30_000, id="nested", marks=LOADERS_CHANGED),
        pytest.param("text/html", b"<ul><li>x" * 2_000_000, id="large"),
    ],
)
def test_document_over_the_limits_is_refused_and_the_next_is_read(loaders, media_type, content):
    with pytest.raises(BrokenDocument):
        loaders[media_type](content)
    assert loaders["text/html"](PAGE).title == "A page"


def test_errors_of_the_loader_are_passed_on(loaders):
    writer = PdfWriter()
    writer.add_blank_page(100, 100)
    writer.encrypt("secret", algorithm="AES-256")
    with pytest.raises(EncryptedDocument, match="password"):
        loaders["application/pdf"](written(writer))
    with pytest.raises(InvalidEncoding, match="UTF-8"):
        loaders["text/html"](b"\xff")


def test_every_format_but_linear_text_is_confined(loaders):
    assert LOADERS.keys() - loaders.keys() == {"text/plain", "text/markdown", "text/x-source"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.docx", b"PK"),
        ("a.pptx", b"PK"),
        ("a.xlsx", b"PK"),
        ("a.epub", b"PK"),
        ("a.csv", b'"'),
        ("a.tsv", b'"'),
        ("a.json", b"[" * 1_000_000),
    ],
)
def test_broken_file_is_refused_by_its_loader_in_the_worker(loaders, name, content):
    with pytest.raises(BrokenDocument, match=r"cannot be parsed|nested deeper"):
        loaders[media_type_of(name)](content)


def test_worker_is_reused_and_has_no_environment(loaders, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    before = set(psutil.Process().children())
    for _ in range(3):
        loaders["text/html"](PAGE)
    (child,) = set(psutil.Process().children()) - before
    assert "OPENAI_API_KEY" not in child.environ()
