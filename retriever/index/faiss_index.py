"""What every index on Faiss has in common: a lock, and searches that go on in stages while it changes."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import faiss

from retriever.embedding.base import Vector
from retriever.embedding.checks import checked_query, checked_vectors
from retriever.index.base import Ids, StageHits
from retriever.index.lock import ReadWriteLock
from retriever.index.pace import Pace
from retriever.index.ranking import Ranking
from retriever.index.slices import Slice
from retriever.settings import IndexSettings

Scan = Callable[[int, int, Ids, Vector], None]
"""Writes the best hits of the units from ``begin`` up to ``end``, as a part of a ranking is written."""


class FaissIndex:
    """A Faiss index with ids of our own, which any number may search while one thread changes it."""

    def __init__(
        self, index: faiss.Index, settings: IndexSettings, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        # Faiss's type stubs lack half of what is called here.
        self._index: Any = index
        self._dimension = int(index.d)
        self._settings = settings
        self._lock = ReadWriteLock()
        self._clock = clock
        self._version = 0
        # A filter has a pace of its own: what it leaves out takes less time.
        self._paces = {filtered: Pace(settings) for filtered in (False, True)}

    @property
    def size(self) -> int:
        """How many vectors it holds."""
        return int(self._index.ntotal)

    def add(self, ids: Ids, vectors: Vector) -> None:
        """Add vectors under new ids. Raises InvalidRequest."""
        vectors = checked_vectors(vectors, self._dimension)
        with self._changing():
            self._index.add_with_ids(vectors, ids)

    def remove(self, ids: Ids) -> None:
        """Remove vectors; ids that it does not hold are ignored."""
        if len(ids):
            with self._changing():
                self._index.remove_ids(ids)

    def _asked(self, query: Vector) -> Vector:
        """The query as Faiss takes it, [1, dimension]. Raises InvalidRequest."""
        return checked_query(query, self._dimension)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock.writing():
            yield
            self._changed()

    def _changed(self) -> None:
        """Note a change; the lock is held for writing."""
        self._version += 1

    def _staged(
        self, k: int, slices: Sequence[Slice], version: int, scan: Scan, pace: Pace, units: int
    ) -> Iterator[StageHits]:
        """The ``k`` best after each slice of what was there at ``version``; there must be a slice.

        All together are so many units of work, for ``pace`` to learn from; 0 where there is nothing to learn.

        The lock is free between two stages, as whoever reads the hits may take their time. What changes there may
        move a document from where the search would yet have come to where it has been, so the last stage of a search
        that met a change reads everything.
        """
        best, seconds, of = Ranking(k), 0.0, len(slices)
        for stage, part in enumerate(slices, start=1):
            with self._lock.reading():
                again = stage == of and self._version != version
                if again:
                    best = Ranking(k)
                began = self._clock()
                hits = best.take(partial(scan, 0 if again else part.begin, part.end))
                seconds += self._clock() - began
            if stage == of and not again:
                pace.learn(units, seconds)
            yield StageHits(*hits, stage, of)
