"""Groups of chunks that the graph does not have yet, and what an extractor finds in them."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from retriever.graph.extractors.base import Extractor, GraphSource, Statement
from retriever.store.database import Database
from retriever.store.facts import Facts, UnreadChunk

_CHUNKS_AT_ONCE = 64


class Group(NamedTuple):
    """Unread chunks, and the statements of each; None for one that cannot be read."""

    chunks: list[UnreadChunk]
    statements: Sequence[Sequence[Statement] | None]


class GroupReader:
    """Reads unread chunks, group by group, and the following group while one is embedded and stored.

    Chunk ids only grow. So each chunk is looked at once, and after a restart once more.
    """

    def __init__(self, database: Database, facts: Facts, extractor: Extractor) -> None:
        self._database = database
        self._facts = facts
        self._extractor = extractor
        self._thread = ThreadPoolExecutor(1, "retriever-extract")
        self._after = 0
        self._current: Group | None = None
        self._ahead: Future[Group | None] | None = None

    def next(self) -> Group | None:
        """Return the next group, the same one until it is ``stored``; None if none is left.

        Raises Unavailable and ConfigError.
        """
        if self._current is None:
            self._current = self._following()
        return self._current

    def stored(self) -> None:
        """Go on behind the current group."""
        self._current = None

    def close(self) -> None:
        """End the extractor, and wait for the group that it reads."""
        self._extractor.close()
        self._thread.shutdown(cancel_futures=True)

    def _following(self) -> Group | None:
        ahead, self._ahead = self._ahead, None
        group = None if ahead is None else ahead.result()
        # What was read ahead may have ended before the latest chunks.
        group = group or self._thread.submit(self._read, self._after).result()
        if group is not None:
            self._after = group.chunks[-1].id
            self._ahead = self._thread.submit(self._read, self._after)
        return group

    def _read(self, after: int) -> Group | None:
        with self._database.read() as transaction:
            chunks = self._facts.unread(transaction, self._extractor.fingerprint, after, _CHUNKS_AT_ONCE)
        if not chunks:
            return None
        sources = [GraphSource(chunk.text, chunk.title, chunk.triplets) for chunk in chunks]
        return Group(chunks, self._extractor.extract(sources))
