"""The PDF loader."""

from io import BytesIO

from pypdf import PdfReader
from pypdf.errors import FileNotDecryptedError, PdfReadError, PyPdfError, WrongPasswordError

from protocol.errors import BrokenDocument, EncryptedDocument
from retriever.loaders.base import LoadedText


def load_pdf(content: bytes) -> LoadedText:
    """Return the text of all pages, separated by blank lines, and the title of the document information."""
    try:
        reader = PdfReader(BytesIO(content))
        # Many files have an empty password, which viewers try first.
        if reader.is_encrypted and not reader.decrypt(""):
            raise EncryptedDocument("the PDF requires a password")
        title = reader.metadata.title if reader.metadata else None
        pages = [page.extract_text().strip() for page in reader.pages]
    except EncryptedDocument:
        raise
    except (FileNotDecryptedError, WrongPasswordError) as error:
        raise EncryptedDocument("the PDF requires a password") from error
    except (PdfReadError, PyPdfError) as error:
        raise BrokenDocument("the PDF cannot be parsed") from error
    except Exception as error:
        # pypdf raises nearly any exception for damaged files: KeyError, RecursionError, zlib.error and more.
        raise BrokenDocument(f"the PDF cannot be parsed: {type(error).__name__}") from error
    return LoadedText(str(title) if title else None, "\n\n".join(pages))
