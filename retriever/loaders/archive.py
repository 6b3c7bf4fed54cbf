"""Checks of ZIP archives before a library unpacks them."""

from io import BytesIO
from zipfile import ZipFile

from protocol.errors import BrokenDocument, EncryptedDocument
from retriever.loaders.base import parsing

MOST_FILES = 10_000
MOST_BYTES = 256 * 1024 * 1024
"""Unpacked size of an archive. Its directory declares it, and zipfile unpacks no more than is declared."""

_ENCRYPTED = 0x1


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
