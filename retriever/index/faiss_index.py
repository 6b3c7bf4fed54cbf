"""The base of all Faiss indexes: a lock, and staged searches that tolerate changes."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import faiss

from retriever.embedding.base import Vector
from retriever.embedding.vector_checks import checked_query, checked_vectors
from retriever.index.base import StageHits
from retriever.index.read_write_lock import ReadWriteLock
from retriever.index.stage_planner import Slice, StagePlanner
from retriever.index.top_k import TopK
from retriever.settings import IndexSettings
from retriever.store.chunks import Ids

SliceScan = Callable[[int, int, Ids, Vector], None]
"""Writes the best hits of the units from ``begin`` up to ``end``, like ``top_k.Scan``."""


class FaissIndex:
    """A Faiss index with our own ids. Any number of threads search while one changes it."""

    def __init__(
        self, index: faiss.Index, settings: IndexSettings, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        # Faiss's type stubs are incomplete.
        self._index: Any = index
        self._dimension = int(index.d)
        self._settings = settings
        self._lock = ReadWriteLock()
        self._clock = clock
        self._version = 0
        # Filtered searches have their own planner, because skipping vectors is faster.
        self._planners = {filtered: StagePlanner(settings.tuning) for filtered in (False, True)}

    @property
    def size(self) -> int:
        """The number of vectors."""
        return int(self._index.ntotal)

    def add(self, ids: Ids, vectors: Vector) -> None:
        """Add vectors with new ids. Raises InvalidRequest."""
        vectors = checked_vectors(vectors, self._dimension)
        with self._changing():
            self._index.add_with_ids(vectors, ids)

    def remove(self, ids: Ids) -> None:
        """Remove vectors. Unknown ids are ignored."""
        if len(ids):
            with self._changing():
                self._index.remove_ids(ids)

    def _query_row(self, query: Vector) -> Vector:
        """Return the query as Faiss reads it, [1, dimension]. Raises InvalidRequest."""
        return checked_query(query, self._dimension)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock.writing():
            yield
            self._changed()

    def _changed(self) -> None:
        """Record a change. The caller holds the lock for writing."""
        self._version += 1

    def _staged(
        self, k: int, slices: Sequence[Slice], version: int, scan: SliceScan, planner: StagePlanner, units: int
    ) -> Iterator[StageHits]:
        """Yield the ``k`` best hits after each slice. There must be at least one slice.

        ``version`` is the version that the slices were cut for. ``units`` is the work of all slices, from which
        ``planner`` learns; 0 means that there is nothing to learn.

        The lock is free between stages, because the consumer of the hits may take its time. A change in between may
        move a document from an unread slice to one already read. So if the version changed, the last stage reads
        everything.
        """
        best, seconds, of = TopK(k), 0.0, len(slices)
        for stage, part in enumerate(slices, start=1):
            with self._lock.reading():
                changed = stage == of and self._version != version
                if changed:
                    best = TopK(k)
                started = self._clock()
                hits = best.merge(partial(scan, 0 if changed else part.begin, part.end))
                seconds += self._clock() - started
            if stage == of and not changed:
                planner.learn(units, seconds)
            yield StageHits(*hits, stage, of)
