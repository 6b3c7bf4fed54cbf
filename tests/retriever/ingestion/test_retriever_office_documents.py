"""Office documents from the upload to the search."""

from io import BytesIO

import pytest
from docx import Document
from retriever_cases import TENANT, ended, running, search

from protocol.documents import DocumentUpload
from protocol.errors import BrokenDocument
from retriever.loaders.registry import media_type_of
from retriever.settings import ChunkSettings

CHAPTERS = ("rivers", "mountains", "deserts")


def handbook() -> bytes:
    document = Document()
    document.add_heading("Handbook", 0)
    for subject in CHAPTERS:
        document.add_heading(f"About {subject}", 1)
        document.add_paragraph(" ".join([subject] * 20))
    file = BytesIO()
    document.save(file)
    return file.getvalue()


def uploaded(content: bytes) -> DocumentUpload:
    return DocumentUpload("book", content, media_type_of("book.docx") or "", "book.docx")


async def test_each_chapter_is_a_chunk_under_the_title(tmp_path):
    async with running(tmp_path, chunks=ChunkSettings(size=32, overlap=8)) as retriever:
        job = await ended(retriever, await retriever.put_document(TENANT, "default", uploaded(handbook())))
        assert (job.status, job.stored) == ("completed", 1)
        assert (await retriever.get_document(TENANT, "default", "book")).info.title == "Handbook"
        for subject in CHAPTERS[1:]:
            best = (await search(retriever, subject)).docs[0]
            assert best.text == f"Handbook\n# About {subject}\n\n" + " ".join([subject] * 20)


async def test_broken_file_is_refused_at_its_upload(tmp_path):
    async with running(tmp_path) as retriever:
        with pytest.raises(BrokenDocument, match="BadZipFile"):
            await retriever.put_document(TENANT, "default", uploaded(handbook()[:1000]))
