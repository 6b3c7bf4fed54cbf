"""The registry of loaders by media type."""

from collections.abc import Mapping
from pathlib import PurePath

from protocol.errors import EmptyDocument, UnsupportedMediaType
from retriever.loaders.base import LoadedText, Loader, clean
from retriever.loaders.docx import load_docx
from retriever.loaders.epub import load_epub
from retriever.loaders.html import load_html
from retriever.loaders.json import JSON_DOCUMENT, load_json
from retriever.loaders.pdf import load_pdf
from retriever.loaders.pptx import load_pptx
from retriever.loaders.tables import load_csv
from retriever.loaders.text import SOURCE_CODE, load_markdown, load_source_code, load_text
from retriever.loaders.text import SUFFIXES as SOURCE_SUFFIXES
from retriever.loaders.xlsx import load_xlsx

_OFFICE = "application/vnd.openxmlformats-officedocument."

LOADERS: Mapping[str, Loader] = {
    "text/plain": load_text,
    "text/markdown": load_markdown,
    "text/html": load_html,
    "application/xhtml+xml": load_html,
    "application/pdf": load_pdf,
    f"{_OFFICE}wordprocessingml.document": load_docx,
    f"{_OFFICE}presentationml.presentation": load_pptx,
    f"{_OFFICE}spreadsheetml.sheet": load_xlsx,
    "application/epub+zip": load_epub,
    "text/csv": load_csv,
    "text/tab-separated-values": load_csv,
    JSON_DOCUMENT: load_json,
    SOURCE_CODE: load_source_code,
}

JSON_LINES = "application/jsonl"
"""The media type of a batch of documents. No loader reads it."""

UNTYPED = ("", "application/octet-stream")
"""Media types of documents whose sender knows no type. The suffix of their name says what they are."""

# The mimetypes module reads system files, so its answers differ between machines.
_SUFFIXES = {
    **dict.fromkeys((".txt", ".text", ".rst"), "text/plain"),
    **dict.fromkeys((".md", ".markdown"), "text/markdown"),
    **dict.fromkeys((".html", ".htm"), "text/html"),
    ".xhtml": "application/xhtml+xml",
    ".pdf": "application/pdf",
    ".docx": f"{_OFFICE}wordprocessingml.document",
    ".pptx": f"{_OFFICE}presentationml.presentation",
    ".xlsx": f"{_OFFICE}spreadsheetml.sheet",
    ".epub": "application/epub+zip",
    ".csv": "text/csv",
    ".tsv": "text/tab-separated-values",
    ".json": JSON_DOCUMENT,
    **dict.fromkeys((".jsonl", ".ndjson"), JSON_LINES),
    **dict.fromkeys(SOURCE_SUFFIXES, SOURCE_CODE),
}


def media_type_of(filename: str) -> str | None:
    """Return the media type of a file name's suffix, or None if no loader reads it."""
    return _SUFFIXES.get(PurePath(filename).suffix.lower())


class LoaderRegistry:
    """The loaders by media type. Every text it returns is cleaned and not empty."""

    def __init__(self, loaders: Mapping[str, Loader] = LOADERS) -> None:
        self._loaders = dict(loaders)

    def load(self, content: bytes, media_type: str, name: str = "") -> LoadedText:
        """Read a document. Parameters of the media type are ignored. ``UNTYPED`` ones are read by their ``name``.

        Raises UnsupportedMediaType, InvalidEncoding, EncryptedDocument, BrokenDocument or EmptyDocument.
        """
        loaded = self._loader(media_type.partition(";")[0].strip().lower(), name)(content)
        text = clean(loaded.text)
        if not text:
            raise EmptyDocument("the document has no text")
        title = " ".join(clean(loaded.title).split()) if loaded.title else ""
        return LoadedText(title or None, text, loaded.pages)

    def _loader(self, media_type: str, name: str) -> Loader:
        by_name = media_type in UNTYPED
        loader = self._loaders.get((media_type_of(name) or "") if by_name else media_type)
        if loader is not None:
            return loader
        if by_name:
            listed = self._loaders.keys() - {SOURCE_CODE}
            suffixes = sorted(suffix for suffix, kind in _SUFFIXES.items() if kind in listed)
            raise UnsupportedMediaType(
                f"no loader reads a file named {name!r}; supported: {', '.join(suffixes)} and source code"
            )
        raise UnsupportedMediaType(f"no loader reads {media_type!r}; supported: {', '.join(sorted(self._loaders))}")
