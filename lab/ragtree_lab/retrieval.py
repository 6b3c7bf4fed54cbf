"""Staged search: compares the shipped indexes, which search in stages, with Faiss's own one-shot search.

Both read the same index in memory, one query at a time on one core. They run the same queries at different places of
the round, so that neither finds the other's data in the processor's caches.

Limits: synthetic vectors, and no embedding or database.
"""

import math
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import faiss
import msgspec
import numpy as np
from threadpoolctl import threadpool_limits

from examine.measuring import Progress
from ragtree_lab.measuring.tuned_index import tuned
from retriever.embedding.base import Vector
from retriever.index.base import StageHits, Trained, VectorIndex
from retriever.index.hnsw import HNSWIndex
from retriever.index.ivf import IVFIndex
from retriever.settings import IndexSettings

Search = Callable[[Vector], list[StageHits]]
"""Maps a query to all stages of its search."""

_NO_TIME_MS = 1e-6
_WORTH_STAGES_MS = 2.0


class Timed(msgspec.Struct, frozen=True):
    """A search's stages and its time in milliseconds."""

    stages: list[StageHits]
    ms: float


class IVFRow(msgspec.Struct, frozen=True):
    """Searches of a share of the lists: median milliseconds and their ratio.

    ``unequal`` counts queries whose last stage differs from Faiss's answer in any bit of ids or scores.
    ``final_by_stage`` is the share of queries whose final hits are known after each stage.
    """

    search_ratio: float
    stages: int
    oneshot_ms: float
    staged_ms: float
    staged_over_oneshot: float
    unequal: int
    final_by_stage: list[float]


class HNSWRow(msgspec.Struct, frozen=True):
    """Searches of the graph in two stages and in one: median milliseconds, and recall after each stage."""

    beam: int
    oneshot_ms: float
    staged_ms: float
    staged_over_oneshot: float
    unequal: int
    recall_by_stage: list[float]


class RetrievalResult(msgspec.Struct, frozen=True):
    """All rows. ``worst_staged_over_oneshot`` is over IVF rows whose one-shot search takes more than 2 ms.

    It is 0 if there is no such row.
    """

    vectors: int
    dim: int
    lists: int
    k: int
    queries: int
    unequal_results: int
    worst_staged_over_oneshot: float
    rows: list[IVFRow]
    hnsw: list[HNSWRow]


class RetrievalBenchmark:
    """Searches vectors, [n, dimension], for the ``k`` nearest to each query. ``settings`` configure the graph."""

    def __init__(
        self, vectors: Vector, queries: Vector, k: int, lists: int, settings: IndexSettings, progress: Progress
    ) -> None:
        self._vectors = vectors
        self._queries = queries
        self._k = k
        self._lists = lists
        self._settings = settings
        self._progress = progress

    def run(self, ratios: Sequence[float], stages: Sequence[int]) -> RetrievalResult:
        """Search each share of the lists in each number of stages, and the graph in two."""
        rows = self._inverted_file(ratios, stages)
        graph = [self._graph()]
        slow = [row.staged_over_oneshot for row in rows if row.oneshot_ms > _WORTH_STAGES_MS]
        return RetrievalResult(
            vectors=len(self._vectors),
            dim=self._vectors.shape[1],
            lists=self._lists,
            k=self._k,
            queries=len(self._queries),
            unequal_results=sum(row.unequal for row in rows) + sum(row.unequal for row in graph),
            worst_staged_over_oneshot=max(slow, default=0.0),
            rows=rows,
            hnsw=graph,
        )

    def _inverted_file(self, ratios: Sequence[float], stages: Sequence[int]) -> list[IVFRow]:
        count, dimension = self._vectors.shape
        self._progress("training lists", 0, 1)
        # Faiss's type stubs are incomplete.
        index: Any = faiss.IndexIVFFlat(
            faiss.IndexFlatIP(dimension), dimension, self._lists, faiss.METRIC_INNER_PRODUCT
        )
        index.cp.spherical = True
        index.cp.max_points_per_centroid, index.cp.min_points_per_centroid = 64, 1
        index.train(self._vectors)
        index.add(self._vectors)
        self._progress("training lists", 1, 1)
        rows = []
        for done, ratio in enumerate(ratios, start=1):
            probes = math.ceil(self._lists * ratio)
            settings = self._settings.model_copy(update={"probe_share": ratio})
            tuning = settings.tuning._replace(min_probes=1, stage_ms=_NO_TIME_MS)
            staged = [IVFIndex(index, Trained(count), tuned(settings, tuning._replace(stages=most))) for most in stages]
            parameters = faiss.SearchParametersIVF(nprobe=probes)  # type: ignore[call-arg]
            oneshot, *ours = self._in_turn([self._oneshot(index, parameters), *map(self._staged, staged)])
            rows += [self._row(ratio, most, oneshot, mine) for most, mine in zip(stages, ours, strict=True)]
            self._progress("searching lists", done, len(ratios))
        return rows

    def _graph(self) -> HNSWRow:
        beam, tuning = self._settings.hnsw.beam, self._settings.tuning
        count, dimension = self._vectors.shape
        graph = faiss.IndexHNSWFlat(dimension, tuning.links, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = tuning.build_beam
        index: Any = faiss.IndexIDMap2(graph)
        self._progress("linking the graph", 0, 1)
        index.add_with_ids(self._vectors, np.arange(count))
        self._progress("linking the graph", 1, 1)
        staged = HNSWIndex(index, Trained(count), tuned(self._settings, tuning._replace(stage_ms=_NO_TIME_MS)))
        parameters = faiss.SearchParametersHNSW(efSearch=beam)  # type: ignore[attr-defined]
        oneshot, ours = self._in_turn([self._oneshot(index, parameters), self._staged(staged)])
        _, truth = faiss.knn(self._queries, self._vectors, self._k, faiss.METRIC_INNER_PRODUCT)
        recalls = [
            [len(np.intersect1d(hits.ids, exact)) / self._k for hits in search.stages]
            for search, exact in zip(ours, truth, strict=True)
        ]
        return HNSWRow(
            beam,
            *_compared(oneshot, ours),
            unequal=_unequal(oneshot, ours),
            recall_by_stage=np.mean(recalls, axis=0).tolist(),
        )

    def _oneshot(self, index: Any, parameters: faiss.SearchParameters) -> Search:  # noqa: ANN401 - as Faiss's stubs are
        def search(query: Vector) -> list[StageHits]:
            scores, ids = index.search(query[None], self._k, params=parameters)
            return [StageHits(ids[0], scores[0], 1, 1)]

        return search

    def _staged(self, index: VectorIndex) -> Search:
        return lambda query: list(index.search(query, self._k))

    def _in_turn(self, sides: Sequence[Search]) -> list[list[Timed]]:
        """Return each side's results for all queries."""
        queries = self._queries
        apart = max(1, len(queries) // len(sides))
        found: list[dict[int, Timed]] = [{} for _ in sides]
        with threadpool_limits(limits=1, user_api="openmp"):
            for search in sides:
                # Lets an index measure its speed.
                search(queries[0])
            for turn in range(len(queries)):
                for number, search in enumerate(sides):
                    asked = (turn + number * apart) % len(queries)
                    began = time.perf_counter()
                    stages = search(queries[asked])
                    found[number][asked] = Timed(stages, 1000 * (time.perf_counter() - began))
        return [[by_query[asked] for asked in range(len(queries))] for by_query in found]

    def _row(self, ratio: float, stages: int, oneshot: Sequence[Timed], ours: Sequence[Timed]) -> IVFRow:
        return IVFRow(
            ratio,
            stages,
            *_compared(oneshot, ours),
            unequal=_unequal(oneshot, ours),
            final_by_stage=[_final_after(stage / stages, ours) for stage in range(1, stages + 1)],
        )


def _compared(oneshot: Sequence[Timed], ours: Sequence[Timed]) -> tuple[float, float, float]:
    theirs_ms, ours_ms = (median(search.ms for search in side) for side in (oneshot, ours))
    return theirs_ms, ours_ms, ours_ms / theirs_ms


def _unequal(oneshot: Sequence[Timed], ours: Sequence[Timed]) -> int:
    pairs = ((whole.stages[-1], mine.stages[-1]) for whole, mine in zip(oneshot, ours, strict=True))
    return sum(
        whole.ids.tobytes() != mine.ids.tobytes() or whole.scores.tobytes() != mine.scores.tobytes()
        for whole, mine in pairs
    )


def _final_after(share: float, searches: Sequence[Timed]) -> float:
    """Return the share of searches whose final hits are known after this share of their stages."""
    known = 0
    for search in searches:
        at = math.ceil(share * len(search.stages)) - 1
        known += np.array_equal(search.stages[at].ids, search.stages[-1].ids)
    return known / len(searches)
