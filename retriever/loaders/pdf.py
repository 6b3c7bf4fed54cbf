"""The loader of PDF."""

from io import BytesIO

from pypdf import PdfReader
from pypdf.errors import FileNotDecryptedError, PdfReadError, PyPdfError, WrongPasswordError

from protocol.errors import BrokenDocument, EncryptedDocument
from retriever.loaders.base import LoadedText


def load_pdf(content: bytes) -> LoadedText:
    """The text of all pages, a blank line between them; the title is the one in the document's information."""
    try:
        reader = PdfReader(BytesIO(content))
        # Many files are encrypted with an empty password, which every viewer tries first.
        if reader.is_encrypted and not reader.decrypt(""):
            raise EncryptedDocument("the PDF asks for a password")
        title = reader.metadata.title if reader.metadata else None
        pages = [page.extract_text().strip() for page in reader.pages]
    except EncryptedDocument:
        raise
    except (FileNotDecryptedError, WrongPasswordError) as error:
        raise EncryptedDocument("the PDF asks for a password") from error
    except (PdfReadError, PyPdfError) as error:
        raise BrokenDocument("the PDF does not parse") from error
    except Exception as error:
        # A damaged file surfaces in pypdf as nearly any exception: KeyError, RecursionError, zlib.error and more.
        raise BrokenDocument(f"the PDF does not parse: {type(error).__name__}") from error
    return LoadedText(str(title) if title else None, "\n\n".join(pages))
