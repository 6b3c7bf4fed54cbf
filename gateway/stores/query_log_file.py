"""The log of past queries as a JSON lines file, readable by the stack's user only."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import structlog

from gateway.settings import MIB
from gateway.stores.query_log import count, entry
from gateway.wire.schemas import WarmQuery
from protocol.retrieval import SearchRequest

log = structlog.get_logger(__name__)

_MOST_WAITING = 1000
_PRIVATE_FOLDER, _PRIVATE_FILE = 0o700, 0o600


class QueryLogFile:
    """The query log in ``queries.jsonl``, one entry per line.

    A file that would exceed ``max_mib`` replaces its predecessor, so there are at most two files. A thread writes the
    lines. If the thread cannot keep up, or the disk fails, lines are dropped; queries are not affected. Without a
    folder, or with 0 MiB, nothing is logged.
    """

    def __init__(self, folder: Path | None, max_mib: int, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder if max_mib else None
        self._max_bytes = max_mib * MIB
        self._clock = clock
        self._writer = ThreadPoolExecutor(1, "query-log")
        self._waiting = 0
        self._failing = False

    def note(self, search: SearchRequest) -> None:
        """Log a query in the background."""
        if self._folder is None or self._waiting >= _MOST_WAITING:
            return
        line = entry(search, self._clock()) + b"\n"
        self._waiting += 1
        writing = asyncio.get_running_loop().run_in_executor(self._writer, self._append, self._folder, line)
        writing.add_done_callback(self._written)

    async def counted(self, as_search: Callable[[WarmQuery], SearchRequest]) -> Counter[SearchRequest]:
        """Count how often each query is in the files. ``as_search`` runs in a thread."""
        if self._folder is None:
            return Counter()
        return await asyncio.get_running_loop().run_in_executor(
            self._writer, lambda folder: count(_lines(folder), as_search), self._folder
        )

    async def close(self) -> None:
        """Write the pending lines and stop the thread."""
        await asyncio.to_thread(self._writer.shutdown)

    def _written(self, writing: asyncio.Future[None]) -> None:
        self._waiting -= 1
        error = None if writing.cancelled() else writing.exception()
        if error is not None and not self._failing:
            # Logged once, not for each query while the disk is full.
            log.warning("query_not_logged", error=repr(error))
        self._failing = error is not None

    def _append(self, folder: Path, line: bytes) -> None:
        folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        current, before = _files(folder)
        if current.exists() and current.stat().st_size + len(line) > self._max_bytes:
            current.replace(before)
        descriptor = os.open(current, os.O_WRONLY | os.O_APPEND | os.O_CREAT, _PRIVATE_FILE)
        with os.fdopen(descriptor, "ab") as file:
            file.write(line)


def _files(folder: Path) -> tuple[Path, Path]:
    """The current file and its predecessor."""
    return folder / "queries.jsonl", folder / "queries.1.jsonl"


def _lines(folder: Path) -> Iterator[bytes]:
    for path in reversed(_files(folder)):
        with suppress(FileNotFoundError), path.open("rb") as file:
            yield from file
