"""Where chunks lie in their documents: titles and lines, in results and in stores of earlier versions."""

import sqlite3

import pytest
from retriever_cases import TENANT, ended, pdf, put, running, search

from protocol.documents import DocumentUpload
from protocol.retrieval import Lines
from retriever.ingestion.chunk_preparer import LineCounter
from retriever.store.chunks import Chunks
from retriever.store.database import Database

TEXT = "one two three four\n\nfive six seven eight\nnine ten eleven twelve\n\n\nthirteen fourteen"


@pytest.mark.parametrize(
    ("start", "end", "lines"),
    [(0, 3, (1, 1)), (0, 4, (1, 1)), (0, 5, (1, 2)), (4, 5, (2, 2)), (5, 6, (3, 3)), (1, 7, (1, 3)), (5, 7, (3, 3))],
)
def test_lines_of_a_range(start: int, end: int, lines: tuple[int, int]):
    assert LineCounter("abc\n\nde").of(start, end) == Lines(*lines)


async def test_each_chunk_knows_its_title_and_lines(tmp_path):
    async with running(tmp_path, chunks={"size": 8, "overlap": 2}) as retriever:
        await put(retriever, "numbers", TEXT, title="Numbers")
        chunks = (await retriever.chunks(TENANT, "default", "numbers")).chunks
        found = await search(retriever, "thirteen fourteen", top_k=1)
    assert len(chunks) > 2
    at = TEXT.split("\n")
    for chunk in chunks:
        first, *_, last = body = chunk.text.removeprefix("Numbers\n").split("\n")
        assert chunk.title == "Numbers"
        assert first in at[chunk.lines.first - 1]
        assert last in at[chunk.lines.last - 1]
        assert len(body) == chunk.lines.last - chunk.lines.first + 1
    assert chunks[0].lines.first == 1
    assert chunks[-1].lines.last == len(at)
    assert found.docs[0] == chunks[-1]


async def test_document_without_a_title(tmp_path):
    async with running(tmp_path) as retriever:
        await put(retriever, "plain", "only a line")
        (chunk,) = (await retriever.chunks(TENANT, "default", "plain")).chunks
    assert (chunk.title, chunk.lines) == (None, Lines(1, 1))


async def test_chunks_of_a_pdf_know_their_pages(tmp_path):
    pages = ("", "the heron fishes in the morning", "", "the owl hunts at night")
    async with running(tmp_path, chunks={"size": 8, "overlap": 0}) as retriever:
        job = await retriever.put_document(
            TENANT, "default", DocumentUpload("birds", pdf(*pages), "application/pdf", "birds.pdf")
        )
        assert (await ended(retriever, job)).stored == 1
        chunks = (await retriever.chunks(TENANT, "default", "birds")).chunks
        await put(retriever, "plain", "no pages")
        (plain,) = (await retriever.chunks(TENANT, "default", "plain")).chunks
    held = {page: chunk.pages for chunk in chunks for page in pages if page and page.split()[1] in chunk.text}
    assert held[pages[1]].first == 2
    assert held[pages[3]].last == 4
    assert chunks[-1].pages.last == 4
    assert plain.pages is None


def test_chunks_that_were_stored_without_lines_have_none(tmp_path):
    path = tmp_path / "store.sqlite3"
    Database(path).close()
    old = sqlite3.connect(path)
    old.executescript(
        """INSERT INTO collections (id, tenant, name, created_at) VALUES (7, 't', 'c', 0);
        INSERT INTO documents VALUES (3, 7, 'd', 'd.txt', 'A title', 'text', 4, '{}', 'h', 'f', 0, 0, NULL, NULL);
        INSERT INTO chunks (id, document, collection, position, text, content_hash, embedding)
            VALUES (5, 3, 7, 0, 'text', 'h', x'');"""
    )
    old.close()
    database = Database(path)
    with database.read() as transaction:
        (chunk,) = Chunks().of_document(transaction, 7, "d")
        assert Chunks().resolve(transaction, 7, [5]) == {5: chunk}
    database.close()
    assert (chunk.chunk_id, chunk.text, chunk.title, chunk.lines, chunk.pages) == ("5", "text", "A title", None, None)
