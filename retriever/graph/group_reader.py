"""Groups of chunks that the graph does not have yet, and what an extractor finds in them."""

import sqlite3
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import takewhile
from typing import NamedTuple

import structlog

from protocol.errors import RagtreeError
from protocol.repeating import MOST_ATTEMPTS
from retriever.graph.extractors.base import Extractor, ExtractorEnded, GraphSource, Statement
from retriever.store.attempts import Attempts
from retriever.store.database import Database, Transaction
from retriever.store.facts import Facts, UnreadChunk

_log = structlog.get_logger(__name__)
_CHUNKS_AT_ONCE = 64


class Group(NamedTuple):
    """Unread chunks, and the statements of each; None for one that cannot be read.

    ``suspect`` is whether it is a single chunk that a process did not survive.
    """

    chunks: list[UnreadChunk]
    statements: Sequence[Sequence[Statement] | None]
    suspect: bool = False


class GroupReader:
    """Reads unread chunks, group by group, and the following group while one is embedded and stored.

    Chunk ids only grow. So each chunk is looked at once, and after a restart once more. An attempt at each chunk is
    recorded before it begins. A chunk that a process did not survive is read alone, with no other beside it, and cannot
    be read after ``MOST_ATTEMPTS`` of them.
    """

    def __init__(self, database: Database, facts: Facts, extractor: Extractor) -> None:
        self._database = database
        self._facts = facts
        self._extractor = extractor
        self._attempts = Attempts("chunk")
        self._thread = ThreadPoolExecutor(1, "retriever-extract")
        self._after = 0
        self._current: Group | None = None
        self._ahead: Future[Group | None] | None = None

    def next(self) -> Group | None:
        """Return the next group, the same one until it is ``stored``; None if none is left.

        Raises Unavailable, ConfigError, StorageFull, sqlite3.Error.
        """
        if self._current is None:
            self._current = self._following()
        return self._current

    def forget_attempts(self, transaction: Transaction, chunk_ids: Iterable[int]) -> None:
        """Forget the attempts at chunks, in the transaction that stores what was read of them."""
        self._attempts.forget(transaction, chunk_ids)

    def stored(self) -> None:
        """Go on behind the current group."""
        self._current = None

    def close(self) -> None:
        """End the extractor, and wait for the group that it reads."""
        self._extractor.close()
        self._thread.shutdown(cancel_futures=True)
        # Without it, an attempt too many counts. The rest of the retriever closes all the same.
        with suppress(RagtreeError, sqlite3.Error), self._database.write() as transaction:
            self._attempts.take_back(transaction)

    def _following(self) -> Group | None:
        ahead, self._ahead = self._ahead, None
        group = None if ahead is None else ahead.result()
        # What was read ahead may have ended before the latest chunks, or before a suspect.
        group = group or self._thread.submit(self._read, self._after).result()
        if group is not None:
            self._after = group.chunks[-1].id
            if not group.suspect:
                self._ahead = self._thread.submit(self._read, self._after, ahead=True)
        return group

    def _read(self, after: int, *, ahead: bool = False) -> Group | None:
        with self._database.read() as transaction:
            chunks = self._facts.unread(transaction, after, _CHUNKS_AT_ONCE)
            lost = self._attempts.lost(transaction)
        if not chunks or (ahead and chunks[0].id in lost):
            return None
        suspect = chunks[0].id in lost
        chunks = chunks[:1] if suspect else list(takewhile(lambda chunk: chunk.id not in lost, chunks))
        if lost.get(chunks[0].id, 0) >= MOST_ATTEMPTS:
            _log.error("chunk not read for the graph, which has ended its reader", chunk=chunks[0].id)
            return Group(chunks, [None], suspect)
        ids = [chunk.id for chunk in chunks]
        with self._database.write() as transaction:
            self._attempts.begin(transaction, ids)
        try:
            sources = [GraphSource(chunk.text, chunk.title, chunk.triplets) for chunk in chunks]
            return Group(chunks, self._extractor.extract(sources), suspect)
        except ExtractorEnded:
            with self._database.write() as transaction:
                self._attempts.lose(transaction, ids)
            raise
