"""Processes that replace a document and crash at a given step.

``crashing_writer.py`` reads ``[folder, step]`` as JSON lines from standard input. For each line it forks a process that
replaces a document in the folder and exits with status 9 at the step, and prints the status. Forking avoids importing
the retriever again for every crash.
"""

import asyncio
import json
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

# The method of each step, which of its calls crashes, and whether before or after. Commits count from the upload's.
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
    "after the new vectors are added": (IndexCatalog, "add", 1, "after"),
    "before the commit": (Database, "commit", 3, "before"),
    "after the commit": (Database, "commit", 3, "after"),
    "after the old vectors are removed": (IndexCatalog, "remove", 1, "after"),
    "before the index is saved": (IndexFiles, "save", 1, "before"),
    "after the index is saved": (IndexFiles, "save", 1, "after"),
}


def crash_at(step: str) -> None:
    if STEPS[step][0] is IndexFiles:
        # A retriever may also save its index right after the start, before the upload.
        call_after(Jobs, "finish", lambda: crash_in(step))
    else:
        crash_in(step)


def call_after(owner: type, name: str, then: Callable[[], None]) -> None:
    original = getattr(owner, name)

    def called(*args, **kwargs):
        result = original(*args, **kwargs)
        then()
        return result

    setattr(owner, name, called)


def crash_in(step: str) -> None:
    owner, name, times, when = STEPS[step]
    original = getattr(owner, name)
    calls = 0

    def crashing(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == times and when == "before":
            os._exit(9)
        result = original(*args, **kwargs)
        if calls == times:
            os._exit(9)
        return result

    setattr(owner, name, crashing)


async def replace_document(folder: Path, step: str) -> None:
    retriever = build_retriever(settings(**SMALL), folder)
    await retriever.start()
    crash_at(step)
    job = await retriever.put_document(TENANT, "default", upload("a", "new " * 60, title="new"))
    while not job.ended:
        await asyncio.sleep(0.002)
        job = await retriever.get_job(TENANT, job.job_id)
    await retriever.close()


def main() -> None:
    for line in sys.stdin:
        folder, step = json.loads(line)
        child = os.fork()
        if not child:
            status = 1
            try:
                asyncio.run(replace_document(Path(folder), step))
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
