"""The base of all Faiss indexes: a lock, and staged searches that tolerate changes."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import faiss
import numpy as np

from retriever.embedding.base import Vector, checked_vectors, query_row
from retriever.index.base import StageHits
from retriever.index.read_write_lock import ReadWriteLock
from retriever.settings import IndexSettings, IndexTuning
from retriever.store.chunks import Ids

_LATEST_WEIGHT = 0.2
_TIES_GROWTH = 8

Scan = Callable[[Ids, Vector], None]
"""Writes the best hits of a part, highest score first, into ids and scores, [n]. Unused entries have the id -1."""

SliceScan = Callable[[int, int, Ids, Vector], None]
"""Writes the best hits of the units from ``begin`` up to ``end``, like ``Scan``."""


class StagePlanner:
    """Estimates how long a search takes, and thus into how many stages to cut it.

    It keeps a running average of the seconds per unit of work. A unit is what the index counts: a row, a list, or a
    candidate of a beam.
    """

    def __init__(self, tuning: IndexTuning) -> None:
        self._tuning = tuning
        self._seconds_per_unit = 0.0

    def stages(self, units: int) -> int:
        """Return the number of stages for this work: one while nothing is known or if it is too short to cut."""
        expected_ms = 1000 * units * self._seconds_per_unit
        return max(1, min(self._tuning.stages, int(expected_ms / self._tuning.stage_ms)))

    def learn(self, units: int, seconds: float) -> None:
        """Record how long some work took."""
        if units:
            weight = _LATEST_WEIGHT if self._seconds_per_unit else 1.0
            self._seconds_per_unit += weight * (seconds / units - self._seconds_per_unit)


class Slice(NamedTuple):
    """The units (rows or lists) that one stage reads, from ``begin`` up to ``end``."""

    begin: int
    end: int


@lru_cache(1024)
def equal_slices(units: int, stages: int) -> tuple[Slice, ...]:
    """Cut ``units`` into about equal slices, one per stage; fewer if there are fewer units."""
    stages = max(1, min(stages, units))
    edges = [units * stage // stages for stage in range(stages + 1)]
    return tuple(Slice(begin, end) for begin, end in pairwise(edges))


class TopK:
    """The ``k`` best hits of all parts so far, by descending score, then by id.

    The order is total, and each part contributes all hits that may enter. So the result does not depend on how the
    vectors were cut into parts, even with duplicate texts of equal score.
    """

    def __init__(self, k: int) -> None:
        self._k = k
        # One table holds the k best so far, then the k + 1 best of the next part, so merging copies nothing.
        self._ids, self._scores = np.empty(2 * k + 1, np.int64), np.empty(2 * k + 1, np.float32)
        self._ids.fill(-1)
        self._scores.fill(-np.inf)
        self._part_ids, self._part_scores = self._ids[k:], self._scores[k:]
        self._best = self._ids[:0], self._scores[:0]

    def merge(self, scan: Scan) -> tuple[Ids, Vector]:
        """Merge the hits of a part. Return ids and scores of the best hits so far, [k] or fewer."""
        k, ids, scores = self._k, self._ids, self._scores
        scan(self._part_ids, self._part_scores)
        if scores[k] < scores[k - 1]:
            return self._best
        if scores[-1] == scores[-2] >= scores[k - 1] and ids[-1] >= 0:
            # Some hits beyond the cut may tie with the last one, and Faiss picks any.
            ids, scores = self._with_ties(scan)
        best = np.lexsort((ids, -scores))[:k]
        best_ids, best_scores = ids[best], scores[best]
        self._ids[:k], self._scores[:k] = best_ids, best_scores
        found = k if best_ids[-1] >= 0 else np.count_nonzero(best_ids >= 0)
        self._best = best_ids[:found], best_scores[:found]
        return self._best

    def _with_ties(self, scan: Scan) -> tuple[Ids, Vector]:
        """Return the best hits so far, and all hits of the part that score at least as high as its k-th."""
        k, count = self._k, self._k + 1
        while True:
            count *= _TIES_GROWTH
            ids, scores = np.full(count, -1, np.int64), np.full(count, -np.inf, np.float32)
            scan(ids, scores)
            if ids[-1] < 0 or scores[-1] < scores[k - 1]:
                return np.concatenate((self._ids[:k], ids)), np.concatenate((self._scores[:k], scores))


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

    def dump(self) -> bytes:
        """Serialize the Faiss index, without the state that this object keeps beside it."""
        return bytes(faiss.serialize_index(self._index))

    def _row_ids(self) -> Ids:
        """A view of the rows' ids in Faiss, [rows], of an index with a map of them. Valid while the lock is held."""
        rows: Ids = faiss.rev_swig_ptr(self._index.id_map.data(), self._index.ntotal)
        return rows

    def _query_row(self, query: Vector) -> Vector:
        """Return the query as Faiss reads it, [1, dimension]. Raises InvalidRequest."""
        return checked_vectors(query_row(query, self._dimension), self._dimension)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock.writing():
            yield
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


class RemovedIds:
    """Ids that searches skip. Guarded by the lock of the index that owns them."""

    def __init__(self) -> None:
        self._ids: Ids = np.zeros(0, np.int64)
        self._others: faiss.IDSelector | None = None

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, ids: Ids) -> None:
        """Skip these ids too."""
        self._ids = np.union1d(self._ids, ids)
        self._others = faiss.IDSelectorNot(faiss.IDSelectorBatch(self._ids))

    def without(self, ids: Ids) -> Ids:
        """Return those of the ids, each given once, that are not removed, in order."""
        return np.setdiff1d(ids, self._ids, assume_unique=True)

    def selector(self, allowed: Ids | None) -> faiss.IDSelector | None:
        """Return the Faiss selector for ``allowed`` without the removed ids; None if everything may be found."""
        return self._others if allowed is None else faiss.IDSelectorBatch(self.without(allowed))
