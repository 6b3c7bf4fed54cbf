import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from crashing_writer import STEPS
from retriever_cases import SMALL, TENANT, index_of, live_ids, put, put_lines, running, search, settings

from protocol.errors import Conflict, StorageFull
from protocol.retrieval import SearchKind
from retriever.build import build_retriever
from retriever.index.catalog import IndexCatalog
from retriever.store.database import Database

HERE = Path(__file__).parents[1]
FILLER = [{"id": f"filler{n}", "text": f"filler number {n}"} for n in range(60)]


@pytest.fixture(scope="module")
def crash() -> Iterator[Callable[[Path, str], int]]:
    """Replace a document in a folder, crash at a step, and return the exit status."""
    command = [sys.executable, str(HERE / "crashing_writer.py")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, **pipes) as writer:

        def run(folder: Path, step: str) -> int:
            print(json.dumps([str(folder), step]), file=writer.stdin, flush=True)
            return int(writer.stdout.readline())

        yield run
        writer.stdin.close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    """A data folder with a trained index and the document that is replaced."""
    folder = tmp_path_factory.mktemp("filled")

    async def fill() -> None:
        async with running(folder, **SMALL) as retriever:
            await put_lines(retriever, FILLER)
            await put(retriever, "a", "old " * 60, title="old")

    asyncio.run(fill())
    return folder


def stored(folder: Path) -> tuple[str, str, list[str]]:
    """The title, the text and the chunks of the document, read without a retriever."""
    with sqlite3.connect(folder / "store.sqlite3") as connection:
        key, title, text = connection.execute(
            "SELECT id, title, text FROM documents WHERE document_id = 'a'"
        ).fetchone()
        sql = "SELECT text FROM chunks WHERE document = ? ORDER BY position"
        chunks = [row[0] for row in connection.execute(sql, (key,))]
    return title, text, chunks


async def drained(folder: Path) -> None:
    async with asyncio.timeout(30):
        with sqlite3.connect(folder / "store.sqlite3") as connection:
            while connection.execute("SELECT count(*) FROM job_items").fetchone()[0]:
                await asyncio.sleep(0.002)


async def test_second_retriever_on_one_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("retriever.lifecycle._LOCK_TIMEOUT_S", 0.05)
    async with running(tmp_path) as first:
        with pytest.raises(Conflict, match="another retriever"):
            async with running(tmp_path):
                pass
        await put(first, "a", "still at work")
    async with running(tmp_path) as successor:
        assert (await successor.get_document(TENANT, "default", "a")).text == "still at work"


@pytest.mark.parametrize("step", STEPS)
async def test_crash_leaves_one_whole_version_and_ingestion_resumes(tmp_path, filled, crash, step):
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    assert await asyncio.to_thread(crash, tmp_path, step) == 9

    title, text, chunks = stored(tmp_path)
    assert title in ("old", "new")
    assert text == (f"{title} " * 60).strip()
    assert len(chunks) > 1
    assert " ".join(chunk.partition("\n")[2] for chunk in chunks) == text

    async with running(tmp_path, **SMALL) as retriever:
        await drained(tmp_path)
        expected = "old" if step == "before the job is accepted" else "new"
        found = await search(retriever, "old new", top_k=1000)
        mine = [chunk for chunk in found.docs if chunk.document_id == "a"]
        assert {chunk.text.partition("\n")[0] for chunk in mine} == {expected}
        info = (await retriever.get_document(TENANT, "default", "a")).info
        assert sorted(chunk.index for chunk in mine) == list(range(info.chunks))
        assert len(found.docs) == len(FILLER) + info.chunks
        assert len({chunk.chunk_id for chunk in found.docs}) == len(found.docs)
    with sqlite3.connect(tmp_path / "store.sqlite3") as connection:
        jobs = connection.execute(
            "SELECT total, stored, failed_documents, status FROM jobs ORDER BY created_at"
        ).fetchall()
        one = (1, 1, 0, "completed")
        assert jobs == [(60, 60, 0, "completed"), one, *([one] if expected == "new" else [])]


class Failing(Database):
    """A database whose next ingest commit raises ``error``."""

    error: BaseException | None = None

    def commit(self, transaction):
        writes = transaction.execute("SELECT count(*) FROM job_items").fetchone()[0] == 0
        if self.error and writes:
            error, self.error = self.error, None
            raise error
        super().commit(transaction)


def io_error():
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    return error


async def reconciled(retriever):
    """Wait until index and store agree. Old vectors leave the index just after their job has ended."""
    async with asyncio.timeout(10):
        while index_of(retriever).ids().tolist() != live_ids(retriever):
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("error", [io_error(), StorageFull("full")])
async def test_failed_commit_removes_its_vectors(tmp_path, error):
    database = Failing(tmp_path / "store.sqlite3")
    retriever = build_retriever(settings(), tmp_path, database=database)
    await retriever.start()
    try:
        await put(retriever, "a", "old elephant")
        database.error = error
        job = await put(retriever, "a", "new elephant")
        # An I/O error is transient and the document is retried. A full disk fails it at once.
        expected = "old" if isinstance(error, StorageFull) else "new"
        assert job.status == ("failed" if expected == "old" else "completed")
        assert [chunk.text for chunk in (await search(retriever, "elephant")).docs] == [f"{expected} elephant"]
        await reconciled(retriever)
    finally:
        await retriever.close()


async def test_index_error_fails_only_the_document(tmp_path, monkeypatch):
    async with running(tmp_path) as retriever:
        await put(retriever, "a", "old elephant")

        def broken(self, collection, ids, vectors):
            raise RuntimeError("no room")

        with monkeypatch.context() as patch:
            patch.setattr(IndexCatalog, "add", broken)
            job = await put(retriever, "a", "new elephant")
        assert (job.status, job.last_error.code) == ("failed", "internal_error")
        assert [chunk.text for chunk in (await search(retriever, "elephant")).docs] == ["old elephant"]
        assert (await put(retriever, "a", "new elephant")).status == "completed"
        await reconciled(retriever)


async def test_chunk_ids_are_never_reused(tmp_path):
    seen = set()
    for round_ in range(3):
        async with running(tmp_path) as retriever:
            await put(retriever, "a", f"text {round_}")
            (id_,) = live_ids(retriever)
            assert id_ not in seen
            seen.add(id_)
            assert np.isin(id_, index_of(retriever).ids())
            await retriever.delete_document(TENANT, "default", "a")


async def test_new_chunks_never_get_ids_that_a_crash_has_left_in_the_lexical_index(tmp_path, crash):
    async with running(tmp_path, **SMALL) as retriever:
        await put(retriever, "a", "old " * 60)
        await put(retriever, "b", "heron " * 40)
    # The lexical index has the chunks of the new text, and the store has not.
    assert await asyncio.to_thread(crash, tmp_path, "before the commit") == 9
    with sqlite3.connect(tmp_path / "store.sqlite3") as connection:
        connection.execute("DELETE FROM job_items")
    changed = {**SMALL, "chunks": {"size": 12, "overlap": 0}}
    async with running(tmp_path, **changed) as retriever:
        for word, name in (("heron", "b"), ("old", "a")):
            found = await search(retriever, word, top_k=100, search=SearchKind.SPARSE)
            whole = (await retriever.chunks(TENANT, "default", name)).chunks
            assert {chunk.chunk_id for chunk in found.docs} == {chunk.chunk_id for chunk in whole}
        assert (await search(retriever, "new", search=SearchKind.SPARSE)).docs == ()
