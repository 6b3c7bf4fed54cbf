"""The log of past queries, used to warm up the cache, and its file."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec
import structlog
from pydantic import ValidationError

from gateway.settings import MIB
from gateway.wire.schemas import WarmQuery, as_requested
from protocol.errors import InvalidRequest
from protocol.graph import GraphMode
from protocol.retrieval import SearchRequest


class QueryLog(Protocol):
    """The most recent queries. Logging never waits and never fails; queries that cannot be logged are dropped."""

    def note(self, search: SearchRequest) -> None:
        """Log a query in the background."""

    async def counted(self, as_search: Callable[[WarmQuery], SearchRequest]) -> Counter[SearchRequest]:
        """Count how often each query is in the log. ``as_search`` runs in a thread.

        Raises Unavailable if the log cannot be read now.
        """


def entry(search: SearchRequest, time: float) -> bytes:
    """A query's log entry, as JSON without line breaks.

    It is ``{time, tenant, collection, query, top_k, context?, search?, rerank?, mode?, filters?}``.
    """
    fields: dict[str, object] = {
        "time": time,
        "tenant": search.tenant,
        "collection": search.collection,
        "query": search.query,
        "top_k": search.top_k,
    }
    optional = {
        "context": search.context or None,
        "search": search.search,
        "rerank": search.rerank,
        "mode": None if search.mode is GraphMode.NAIVE else search.mode,
        "filters": None if search.filters is None else as_requested(search.filters),
    }
    return msgspec.json.encode(fields | {name: value for name, value in optional.items() if value is not None})


def count(entries: Iterable[bytes], as_search: Callable[[WarmQuery], SearchRequest]) -> Counter[SearchRequest]:
    """Count how often each query occurs in the entries."""
    counted: Counter[SearchRequest] = Counter()
    for noted in entries:
        # Skips entries that a crash cut off, or that exceed limits which were set later.
        with suppress(ValidationError, InvalidRequest):
            counted[as_search(WarmQuery.model_validate_json(noted))] += 1
    return counted


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
