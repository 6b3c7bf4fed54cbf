"""What kills the retriever is given up after three attempts, and harms nothing beside and behind it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from retriever_cases import TENANT, ended, ids, put, running, search, upload

from protocol.repeating import MOST_ATTEMPTS
from retriever.embedding.hashing import HashingEmbedder
from retriever.store.attempts import Attempts
from retriever.store.database import Database

HERE = Path(__file__).parents[1]
KILLED = -signal.SIGKILL
Run = Callable[..., tuple[int, dict[str, int]]]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Run a mortal retriever on a folder. Return its exit status and counts."""
    command = [sys.executable, str(HERE / "mortal_retriever.py")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, **pipes) as process:

        def run(folder: Path, documents: list[dict[str, Any]], **settings: Any) -> tuple[int, dict[str, int]]:
            print(json.dumps([str(folder), documents, settings]), file=process.stdin, flush=True)
            while not (line := process.stdout.readline()).startswith("["):
                assert line
            status, counts = json.loads(line)
            return status, counts

        yield run
        process.stdin.close()


@pytest.mark.parametrize("times", [1, 5000], ids=["in a group", "in parts"])
async def test_a_document_that_kills_fails_after_three_attempts(tmp_path, run, times):
    documents = [
        {"id": "before", "text": "a giraffe"},
        {"id": "deadly", "text": "some words " * times + "deadly"},
        {"id": "beside", "text": "an elephant"},
        {"id": "long", "text": "words of a heron " * 5000},
    ]
    changes = {"group_bytes": 2000, "chunks": {"size": 64, "overlap": 0}}
    assert (await asyncio.to_thread(run, tmp_path, documents, **changes))[0] == KILLED
    for _ in range(MOST_ATTEMPTS - 1):
        assert (await asyncio.to_thread(run, tmp_path, [], **changes))[0] == KILLED
    status, counts = await asyncio.to_thread(run, tmp_path, [], **changes)
    assert status == 0
    assert counts["failed"] == 1
    async with running(tmp_path, **changes) as retriever:
        with retriever._store.database.read() as transaction:
            (job_id,) = transaction.execute("SELECT id FROM jobs").fetchone()
            assert transaction.execute("SELECT * FROM attempts").fetchall() == []
            assert transaction.execute("SELECT * FROM staged_chunks").fetchall() == []
        job = await retriever.get_job(TENANT, job_id)
        assert (job.status, job.stored, job.failed_documents) == ("completed", 3, 1)
        assert (job.last_error.code, job.last_error.document_id) == ("ingestion_abandoned", "deadly")
        assert "ended 3 times" in job.last_error.message
        assert ids(await search(retriever, "elephant", top_k=1)) == ["beside"]


async def test_a_document_that_kills_when_it_is_embedded_again_stays_stored(tmp_path, run):
    async with running(tmp_path) as retriever:
        for name, text in {"deadly": "a deadly viper", "kept": "an elephant"}.items():
            await put(retriever, name, text)
    changes = {"chunks": {"size": 64, "overlap": 0}}
    for _ in range(MOST_ATTEMPTS):
        assert (await asyncio.to_thread(run, tmp_path, [], **changes))[0] == KILLED
    assert (await asyncio.to_thread(run, tmp_path, [], **changes))[0] == 0
    async with running(tmp_path, **changes) as retriever:
        assert ids(await search(retriever, "viper elephant", top_k=5)) == ["kept"]
        assert (await retriever.get_document(TENANT, "default", "deadly")).text == "a deadly viper"


class Exhausted(HashingEmbedder):
    def embed_documents(self, texts):
        if any("large" in text for text in texts):
            raise MemoryError
        return super().embed_documents(texts)


@pytest.mark.parametrize("times", [1, 5000], ids=["in a group", "in parts"])
async def test_too_little_memory_fails_a_document_at_once(tmp_path, times):
    async with running(tmp_path, Exhausted(), group_bytes=2000) as retriever:
        jobs = [
            await retriever.put_document(TENANT, "default", upload(name, text))
            for name, text in (("small", "one"), ("large", "large " * times), ("other", "two"))
        ]
        small, large, other = [await ended(retriever, job) for job in jobs]
    assert (small.status, large.status, other.status) == ("completed", "failed", "completed")
    assert large.last_error.code == "ingestion_abandoned"


class Waiting(HashingEmbedder):
    """Fails as an endpoint that does not answer."""

    def embed_documents(self, texts):
        if any("elephant" in text for text in texts):
            raise OSError("no route")
        return super().embed_documents(texts)


async def test_an_orderly_end_is_no_attempt(tmp_path):
    for _ in range(MOST_ATTEMPTS + 1):
        async with running(tmp_path, Waiting()) as retriever:
            await retriever.put_document(TENANT, "default", upload("a", "elephant"))
            async with asyncio.timeout(10):
                while not attempts_of(retriever._store.database):
                    await asyncio.sleep(0.002)
    async with running(tmp_path) as retriever:
        await put(retriever, "b", "giraffe")
        assert ids(await search(retriever, "elephant", top_k=1)) == ["a"]


def attempts_of(database: Database) -> list[tuple[Any, ...]]:
    with database.read() as transaction:
        return [tuple(row) for row in transaction.execute("SELECT kind, id, count FROM attempts")]


def test_only_attempts_that_their_process_did_not_survive_count(tmp_path):
    database = Database(tmp_path / "store.sqlite3")
    first, second = Attempts("item"), Attempts("item")
    with database.write() as transaction:
        first.begin(transaction, [1, 2])
        first.begin(transaction, [1, 2])
        Attempts("chunk").begin(transaction, [1])
        assert first.lost(transaction) == {}
        assert second.lost(transaction) == {1: 1, 2: 1}
        second.begin(transaction, [1])
        assert second.lost(transaction) == {1: 1, 2: 1}
        second.take_back(transaction)
        assert second.lost(transaction) == {1: 1, 2: 1}
        second.forget(transaction, [1])
        assert second.lost(transaction) == {2: 1}
    database.close()
