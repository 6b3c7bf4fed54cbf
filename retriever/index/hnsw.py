"""The graph index."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import faiss
import numpy as np

from retriever.embedding.base import Vector
from retriever.index.base import StageHits, Trained
from retriever.index.faiss_index import FaissIndex, RemovedIds, Slice, StagePlanner, TopK
from retriever.settings import IndexSettings
from retriever.store.chunks import Ids

_NARROW_BEAM_DIVISOR = 8


class HNSWIndex(FaissIndex):
    """A graph of near neighbours (HNSW), which a search traverses best first with a beam.

    A search has at most two stages: one with a narrow beam, then one from the start with the full beam, because Faiss
    cannot widen a beam. The second stage equals a search in one stage. Removed vectors stay in the graph and are
    skipped; in one that is restored from ``dump``, they are present again. If a filter leaves fewer vectors than the
    beam would visit, all are compared.
    """

    kind = "hnsw"

    def __init__(
        self, index: faiss.Index, trained: Trained, settings: IndexSettings, clock: Callable[[], float] = perf_counter
    ) -> None:
        super().__init__(index, settings, clock)
        self.trained = trained
        graph: Any = faiss.downcast_index(self._index.index)
        self._vectors: Any = faiss.downcast_index(graph.storage)
        self._removed = RemovedIds()

    @classmethod
    def build(
        cls, ids: Ids, vectors: Vector, settings: IndexSettings, clock: Callable[[], float] = perf_counter
    ) -> "HNSWIndex":
        """Build an index of these vectors, [n, dimension]."""
        graph = faiss.IndexHNSWFlat(vectors.shape[1], settings.tuning.links, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = settings.tuning.build_beam
        index: Any = faiss.IndexIDMap2(graph)
        index.add_with_ids(vectors, ids)
        return cls(index, Trained(len(ids)), settings, clock)

    @property
    def size(self) -> int:
        """The number of vectors, without removed ones."""
        return int(self._index.ntotal) - len(self._removed)

    @property
    def needs_rebuild(self) -> bool:
        """Whether the share of removed vectors exceeds the limit."""
        return len(self._removed) > self._settings.tuning.removed_share * int(self._index.ntotal)

    def remove(self, ids: Ids) -> None:
        """Skip these vectors from now on. Unknown ids are ignored."""
        with self._changing():
            self._removed.add(np.intersect1d(ids, self._row_ids()))

    def search(self, query: Vector, k: int, allowed: Ids | None = None) -> Iterator[StageHits]:
        """Yield the ``k`` nearest of the vectors that the beam visits."""
        row = self._query_row(query)
        with self._lock.reading():
            version, most = self._version, max(1, min(k, self.size))
            candidates = self.size if allowed is None else len(self._removed.without(allowed))
            # If only some vectors are allowed, widen the beam so that it holds as many allowed ones.
            beam = math.ceil(max(most, self._settings.hnsw.beam) * self._index.ntotal / max(1, candidates))
        planner = self._planners[allowed is not None]
        if candidates <= beam * 2 * self._settings.tuning.links:
            scan = partial(self._scan_all, row, allowed)
            slices = [Slice(0, candidates)]
            return self._staged(most, slices, version, lambda _begin, _end, *into: scan(*into), planner, units=0)
        beams = [max(most, beam // _NARROW_BEAM_DIVISOR), beam] if planner.stages(beam) > 1 else [beam]
        return self._search_graph(most, row, allowed, beams, planner)

    def ids(self) -> Ids:
        """Return the ids of all vectors, ascending."""
        return np.sort(self._removed.without(self._row_ids()))

    def _search_graph(
        self, k: int, row: Vector, allowed: Ids | None, beams: Sequence[int], planner: StagePlanner
    ) -> Iterator[StageHits]:
        for stage, beam in enumerate(beams, start=1):
            with self._lock.reading():
                started = self._clock()
                hits = TopK(k).merge(partial(self._scan_graph, row, allowed, beam))
                seconds = self._clock() - started
            planner.learn(beam, seconds)
            yield StageHits(*hits, stage, len(beams))

    def _scan_graph(self, row: Vector, allowed: Ids | None, beam: int, ids: Ids, scores: Vector) -> None:
        selector = self._removed.selector(allowed)
        parameters = faiss.SearchParametersHNSW(efSearch=beam, sel=selector)  # type: ignore[attr-defined]
        self._index.search(row, len(ids), params=parameters, I=ids[None], D=scores[None])

    def _scan_all(self, row: Vector, allowed: Ids | None, ids: Ids, scores: Vector) -> None:
        selector = self._removed.selector(allowed)
        if selector is not None:
            selector = faiss.IDSelectorTranslated(self._index.id_map, selector)
        parameters = faiss.SearchParameters(sel=selector)  # type: ignore[call-arg]
        self._vectors.search(row, len(ids), params=parameters, I=ids[None], D=scores[None])
        found = ids >= 0
        ids[found] = self._row_ids()[ids[found]]
