"""A process that replaces a document and dies at the step named: ``crashing_writer.py FOLDER STEP``."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

from retriever_cases import SMALL, TENANT, settings, upload

from retriever.build import build_retriever
from retriever.index.catalog import IndexCatalog
from retriever.index.index_files import IndexFiles
from retriever.ingestion.chunk_preparer import ChunkPreparer
from retriever.store.database import Database
from retriever.store.documents import Documents
from retriever.store.jobs import Jobs

# Where each step is, and whether the process dies before or after it; commits are counted from the upload's.
STEPS = {
    "before the job is accepted": (Database, "commit", 1, "before"),
    "after the job is accepted": (Database, "commit", 1, "after"),
    "before the job is in progress": (Database, "commit", 2, "before"),
    "after the job is in progress": (Database, "commit", 2, "after"),
    "before embedding": (ChunkPreparer, "prepare", 1, "before"),
    "after embedding": (ChunkPreparer, "prepare", 1, "after"),
    "before the old chunks are replaced": (Documents, "replace_chunks", 1, "before"),
    "after the old chunks are replaced": (Documents, "replace_chunks", 1, "after"),
    "after the document is written": (Documents, "put", 1, "after"),
    "after the job is counted": (Jobs, "finish", 1, "after"),
    "after the index has the new": (IndexCatalog, "add", 1, "after"),
    "before the switch": (Database, "commit", 3, "before"),
    "after the switch": (Database, "commit", 3, "after"),
    "after the index has lost the old": (IndexCatalog, "remove", 1, "after"),
    "before the index is saved": (IndexFiles, "save", 1, "before"),
    "after the index is saved": (IndexFiles, "save", 1, "after"),
}


def die_at(step: str) -> None:
    if STEPS[step][0] is IndexFiles:
        # A retriever that has just started may save its index too, before there is anything new.
        after(Jobs, "finish", lambda: die_in(step))
    else:
        die_in(step)


def after(owner: type, name: str, then: Callable[[], None]) -> None:
    original = getattr(owner, name)

    def called(*args, **kwargs):
        result = original(*args, **kwargs)
        then()
        return result

    setattr(owner, name, called)


def die_in(step: str) -> None:
    owner, name, times, when = STEPS[step]
    original = getattr(owner, name)
    calls = 0

    def dying(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == times and when == "before":
            os._exit(9)
        result = original(*args, **kwargs)
        if calls == times:
            os._exit(9)
        return result

    setattr(owner, name, dying)


async def main(folder: Path, step: str) -> None:
    retriever = build_retriever(settings(**SMALL), folder)
    await retriever.start()
    die_at(step)
    job = await retriever.put_document(TENANT, "default", upload("a", "new " * 60, title="new"))
    while not job.ended:
        await asyncio.sleep(0.002)
        job = await retriever.get_job(TENANT, job.job_id)
    await retriever.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
