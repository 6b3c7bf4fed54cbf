import pytest
from made_archives import flagged_encrypted, unzipped, with_files, zipped

from protocol.errors import BrokenDocument, EmptyDocument, EncryptedDocument
from retriever.loaders import archive
from retriever.loaders.registry import LoaderRegistry, media_type_of

CONTAINER = """<?xml version="1.0"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
<rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>"""
PACKAGE = """<?xml version="1.0"?>
<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/" version="3.0">
<metadata><dc:title>The  Book</dc:title></metadata>
<manifest>
<item id="two" href="text/two%20b.xhtml" media-type="application/xhtml+xml"/>
<item id="one" href="text/one.xhtml" media-type="application/xhtml+xml"/>
<item id="picture" href="a.png" media-type="image/png"/>
</manifest>
<spine><itemref idref="one"/><itemref idref="picture"/><itemref idref="gone"/><itemref idref="two"/></spine>
</package>"""
ONE = "<html><head><title>One</title></head><body><h1>Chapter one</h1><p>It begins.</p></body></html>"
TWO = """<html><body><h2>Chapter two</h2>
<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table></body></html>"""
BOOK = zipped(
    {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": CONTAINER,
        "OEBPS/book.opf": PACKAGE,
        "OEBPS/text/two b.xhtml": TWO,
        "OEBPS/text/one.xhtml": ONE,
    }
)


def load(content: bytes):
    return LoaderRegistry().load(content, media_type_of("a.epub") or "")


def without(name: str) -> bytes:
    return zipped({other: content for other, content in unzipped(BOOK).items() if other != name})


def encryption(path: str) -> str:
    return (
        '<encryption xmlns="urn:oasis:names:tc:opendocument:xmlns:container" xmlns:enc="http://www.w3.org/2001/04/xmlenc#">'
        f'<enc:EncryptedData><enc:CipherData><enc:CipherReference URI="{path}"/></enc:CipherData></enc:EncryptedData>'
        "</encryption>"
    )


def test_chapters_are_read_in_the_order_of_the_spine():
    loaded = load(BOOK)
    assert loaded.title == "The Book"
    assert loaded.text == "# Chapter one\n\nIt begins.\n\n## Chapter two\n\na | b\n1 | 2"


@pytest.mark.parametrize(
    "package",
    [
        PACKAGE.partition("<spine>")[0] + "</package>",
        PACKAGE.partition("<spine>")[0] + "<spine/></package>",
        PACKAGE.replace('idref="one"', 'idref="x"').replace('idref="two"', 'idref="x"'),
    ],
    ids=["none", "empty", "dangling"],
)
def test_book_without_a_spine_is_refused(package):
    with pytest.raises(BrokenDocument, match="no spine"):
        load(with_files(BOOK, {"OEBPS/book.opf": package}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (without("META-INF/container.xml"), "not an EPUB"),
        (without("OEBPS/book.opf"), "cannot be parsed: KeyError"),
        (without("OEBPS/text/one.xhtml"), r"lacks its chapter 'OEBPS/text/one\.xhtml'"),
        (with_files(BOOK, {"META-INF/container.xml": "<container/>"}), "does not name its package"),
        (with_files(BOOK, {"OEBPS/book.opf": PACKAGE[:200]}), "cannot be parsed: ParseError"),
        (BOOK[:300], "cannot be parsed: BadZipFile"),
        (b"%PDF-1.7", "is a PDF, not"),
        (b"", "is not"),
    ],
)
def test_broken_book_is_refused(content, message):
    with pytest.raises(BrokenDocument, match=message):
        load(content)


def test_chapter_outside_of_the_book_is_refused():
    package = PACKAGE.replace("text/one.xhtml", "../../../../etc/hostname")
    with pytest.raises(BrokenDocument, match="lacks its chapter"):
        load(with_files(BOOK, {"OEBPS/book.opf": package}))


def test_entities_are_refused():
    bomb = '<!DOCTYPE p [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
    package = PACKAGE.replace("<package", f"{bomb}<package").replace("The  Book", "&b;")
    with pytest.raises(BrokenDocument, match="EntitiesForbidden"):
        load(with_files(BOOK, {"OEBPS/book.opf": package}))


def test_archive_bomb_is_refused_before_unpacking():
    with pytest.raises(BrokenDocument, match="unpacks to more than"):
        load(with_files(BOOK, {"OEBPS/big": bytes(archive.MOST_BYTES)}))


def test_protected_book_is_refused_and_encrypted_fonts_are_not():
    with pytest.raises(EncryptedDocument, match="protected"):
        load(with_files(BOOK, {"META-INF/encryption.xml": encryption("OEBPS/text/two%20b.xhtml")}))
    with pytest.raises(EncryptedDocument, match="password"):
        load(flagged_encrypted(BOOK))
    assert load(with_files(BOOK, {"META-INF/encryption.xml": encryption("OEBPS/font.otf")})) == load(BOOK)


def test_book_of_pictures_is_empty():
    with pytest.raises(EmptyDocument):
        load(with_files(BOOK, dict.fromkeys(("OEBPS/text/one.xhtml", "OEBPS/text/two b.xhtml"), "<img/>")))
