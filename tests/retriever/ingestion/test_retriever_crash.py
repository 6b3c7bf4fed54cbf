import asyncio
import os
import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest
from crashing_writer import STEPS
from retriever_cases import SMALL, TENANT, put, put_lines, running, search, settings

from protocol.errors import Conflict, StorageFull
from retriever.build import build_retriever
from retriever.index.catalog import IndexCatalog
from retriever.store.database import Database

HERE = Path(__file__).parents[1]
FILLER = [{"id": f"filler{n}", "text": f"filler number {n}"} for n in range(60)]


async def crash(folder: Path, step: str) -> int:
    path = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE / "crashing_writer.py"),
        str(folder),
        step,
        env={**os.environ, "PYTHONPATH": path},
    )
    return await process.wait()


def stored(folder: Path) -> tuple[str, str, list[str]]:
    """The title, the text and the chunks of the document, read past the retriever."""
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


async def test_two_retrievers_never_work_on_one_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("retriever.lifecycle._LOCK_TIMEOUT_S", 0.05)
    async with running(tmp_path) as first:
        with pytest.raises(Conflict, match="another retriever"):
            async with running(tmp_path):
                pass
        await put(first, "a", "still at work")
    async with running(tmp_path) as successor:
        assert (await successor.get_document(TENANT, "default", "a")).text == "still at work"


@pytest.mark.parametrize("step", STEPS)
async def test_crash_leaves_the_old_or_the_new_and_the_rest_is_made_up_for(tmp_path, step):
    async with running(tmp_path, **SMALL) as retriever:
        await put_lines(retriever, FILLER)
        await put(retriever, "a", "old " * 60, title="old")

    assert await crash(tmp_path, step) == 9

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
    """A database whose commit fails as told, once."""

    error: BaseException | None = None

    def commit(self, transaction):
        writes = transaction.execute("SELECT count(*) FROM job_items").fetchone()[0] == 0
        if self.error and writes:
            error, self.error = self.error, None
            raise error
        super().commit(transaction)


def index_of(retriever):
    (entry,) = retriever._ingester._catalog._entries.values()
    return entry.vectors


def live_ids(retriever):
    with retriever._database.read() as transaction:
        return [row[0] for row in transaction.execute("SELECT id FROM chunks ORDER BY id")]


def io_error():
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    return error


async def reconciled(retriever):
    """Wait until the index holds what the store does: old vectors leave it just after their job has ended."""
    async with asyncio.timeout(10):
        while index_of(retriever).ids().tolist() != live_ids(retriever):
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("error", [io_error(), StorageFull("full")])
async def test_failed_commit_takes_its_vectors_back(tmp_path, error):

    database = Failing(tmp_path / "store.sqlite3")
    retriever = build_retriever(settings(), tmp_path, database=database)
    await retriever.start()
    try:
        await put(retriever, "a", "old elephant")
        database.error = error
        job = await put(retriever, "a", "new elephant")
        # An I/O error may pass, and the document is tried again; a full disk is told at once.
        expected = "old" if isinstance(error, StorageFull) else "new"
        assert job.status == ("failed" if expected == "old" else "completed")
        assert [chunk.text for chunk in (await search(retriever, "elephant")).docs] == [f"{expected} elephant"]
        await reconciled(retriever)
    finally:
        await retriever.close()


async def test_index_that_fails_fails_the_document_and_nothing_else(tmp_path, monkeypatch):
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


async def test_chunk_ids_are_never_given_twice(tmp_path):
    seen = set()
    for round_ in range(3):
        async with running(tmp_path) as retriever:
            await put(retriever, "a", f"text {round_}")
            (id_,) = live_ids(retriever)
            assert id_ not in seen
            seen.add(id_)
            assert np.isin(id_, index_of(retriever).ids())
            await retriever.delete_document(TENANT, "default", "a")
