"""Checks of ZIP archives, and of the Office files in them (DOCX, PPTX, XLSX), before a library reads them."""

from io import BytesIO
from zipfile import ZipFile

from protocol.errors import BrokenDocument, EncryptedDocument
from retriever.loaders.base import parsing

MOST_FILES = 10_000
MOST_BYTES = 256 * 1024 * 1024
"""Unpacked size of an archive. Its directory declares it, and zipfile unpacks no more than is declared."""

_ENCRYPTED = 0x1

_COMPOUND_FILE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""Office wraps an encrypted file into its format of before 2007."""

_ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")
_MAIN_TYPES = {
    "DOCX": b"wordprocessingml.document.main+xml",
    "PPTX": b"presentationml.presentation.main+xml",
    "XLSX": b"spreadsheetml.sheet.main+xml",
}

_PROLOG = 64 * 1024
"""Bytes in which a document type would be declared. The parsers expand no entity in any case."""


def open_archive(content: bytes, kind: str) -> ZipFile:
    """Open the archive that a document of ``kind``, such as ``DOCX``, consists of.

    Raises BrokenDocument if it is no archive or unpacks to too much, and EncryptedDocument.
    """
    if not content.startswith(b"PK"):
        found = "is a PDF, not" if content.startswith(b"%PDF-") else "is not"
        raise BrokenDocument(f"the file {found} a {kind}")
    with parsing(kind):
        archive = ZipFile(BytesIO(content))
    files = archive.infolist()
    if len(files) > MOST_FILES:
        raise BrokenDocument(f"the {kind} contains more than {MOST_FILES:,} files")
    if sum(file.file_size for file in files) > MOST_BYTES:
        raise BrokenDocument(f"the {kind} unpacks to more than {MOST_BYTES // 1024**2} MiB")
    if any(file.flag_bits & _ENCRYPTED for file in files):
        raise EncryptedDocument(f"the {kind} requires a password")
    return archive


def check_office_package(content: bytes, kind: str) -> None:
    """Refuse what is not a plain ``DOCX``, ``PPTX`` or ``XLSX``: macros, entities, archive bombs, passwords.

    Raises BrokenDocument or EncryptedDocument.
    """
    if content.startswith(_COMPOUND_FILE):
        if _ENCRYPTED_PACKAGE in content:
            raise EncryptedDocument(f"the {kind} requires a password")
        raise BrokenDocument(f"the file has Office's format of before 2007; save it as {kind}")
    with open_archive(content, kind) as archive, parsing(kind):
        names = archive.namelist()
        if "[Content_Types].xml" not in names:
            raise BrokenDocument(f"the file is an archive, not a {kind}")
        types = archive.read("[Content_Types].xml")
        if b"macroEnabled" in types or any(name.lower().endswith("vbaproject.bin") for name in names):
            raise BrokenDocument(f"the document has macros; save it as {kind} without them")
        if _MAIN_TYPES[kind] not in types:
            raise BrokenDocument(f"the file is an Office file of another kind, not a {kind}")
        for name in names:
            if name.lower().endswith((".xml", ".rels")):
                with archive.open(name) as part:
                    # UTF-16 has a zero byte beside each letter.
                    if b"<!DOCTYPE" in part.read(_PROLOG).replace(b"\x00", b""):
                        raise BrokenDocument(f"the {kind} declares a document type, which Office files may not do")
