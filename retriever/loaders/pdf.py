"""The PDF loader."""

from collections.abc import Iterator, Sequence
from io import BytesIO

from pypdf import PdfReader
from pypdf.errors import FileNotDecryptedError, WrongPasswordError

from protocol.errors import EncryptedDocument
from retriever.loaders.base import LoadedText, clean, parsing


def load_pdf(content: bytes) -> LoadedText:
    """Return the text of all pages, separated by blank lines, and the title of the document information."""
    with parsing("PDF"):
        try:
            reader = PdfReader(BytesIO(content))
            # Many files have an empty password, which viewers try first.
            if reader.is_encrypted and not reader.decrypt(""):
                raise EncryptedDocument("the PDF requires a password")
            title = reader.metadata.title if reader.metadata else None
            pages = [clean(page.extract_text()) for page in reader.pages]
        except (FileNotDecryptedError, WrongPasswordError) as error:
            raise EncryptedDocument("the PDF requires a password") from error
    text = "\n\n".join(pages)
    return LoadedText(str(title) if title else None, text, tuple(_first_lines(pages)))


def _first_lines(pages: Sequence[str]) -> Iterator[int]:
    """The first line of each page. Empty pages before the first text begin with it."""
    begun, line = False, 1
    for page in pages:
        yield line
        begun = begun or page != ""
        if begun:
            line += page.count("\n") + 2
