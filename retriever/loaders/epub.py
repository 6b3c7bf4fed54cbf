"""The EPUB loader."""

from collections.abc import Iterator
from posixpath import dirname, join, normpath
from urllib.parse import unquote
from xml.etree.ElementTree import Element  # nosec B405  # only a type; defusedxml parses
from zipfile import ZipFile

from defusedxml.ElementTree import fromstring

from protocol.errors import BrokenDocument, EncryptedDocument
from retriever.loaders.archive import open_archive
from retriever.loaders.base import LoadedText, joined, parsing
from retriever.loaders.html import load_html

_PAGES = ("application/xhtml+xml", "text/html")
_ENCRYPTION = "META-INF/encryption.xml"


def load_epub(content: bytes) -> LoadedText:
    """Return the chapters of a book in reading order. The title is the book's own."""
    with parsing("EPUB"), open_archive(content, "EPUB") as archive:
        package_path = _package_path(archive)
        package = fromstring(archive.read(package_path))
        chapters = _chapters(package, dirname(package_path))
        if not chapters:
            raise BrokenDocument("the EPUB has no spine, which lists the chapters")
        if _encrypted(archive) & set(chapters):
            raise EncryptedDocument("the EPUB is protected against copying")
        title = package.find("{*}metadata/{*}title")
        return LoadedText(title.text if title is not None else None, joined(_texts(archive, chapters)))


def _package_path(archive: ZipFile) -> str:
    if "META-INF/container.xml" not in archive.namelist():
        raise BrokenDocument("the file is an archive, not an EPUB")
    root = fromstring(archive.read("META-INF/container.xml")).find("{*}rootfiles/{*}rootfile")
    path: str | None = root.get("full-path") if root is not None else None
    if not path:
        raise BrokenDocument("the EPUB does not name its package file")
    return path


def _chapters(package: Element, folder: str) -> list[str]:
    """Return the files of the chapters in the order of the spine."""
    items = {item.get("id"): item for item in package.iterfind("{*}manifest/{*}item")}
    spine = [items.get(entry.get("idref")) for entry in package.iterfind("{*}spine/{*}itemref")]
    pages = [item for item in spine if item is not None and item.get("media-type") in _PAGES]
    return [normpath(join(folder, unquote(item.get("href", "")))) for item in pages]


def _encrypted(archive: ZipFile) -> set[str]:
    """Return the encrypted files. A book without protection may have encrypted fonts."""
    if _ENCRYPTION not in archive.namelist():
        return set()
    references = fromstring(archive.read(_ENCRYPTION)).iterfind(".//{*}CipherReference")
    return {unquote(reference.get("URI", "")) for reference in references}


def _texts(archive: ZipFile, chapters: list[str]) -> Iterator[str]:
    names = set(archive.namelist())
    for chapter in chapters:
        if chapter not in names:
            raise BrokenDocument(f"the EPUB lacks its chapter {chapter!r}")
        yield load_html(archive.read(chapter)).text.strip()
