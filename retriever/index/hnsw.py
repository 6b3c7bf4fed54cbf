"""The graph index."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import faiss
import numpy as np

from retriever.embedding.base import Vector
from retriever.index.base import Ids, StageHits, Trained
from retriever.index.faiss_index import FaissIndex
from retriever.index.pace import Pace
from retriever.index.ranking import Ranking
from retriever.index.removed import RemovedIds
from retriever.index.slices import Slice
from retriever.settings import IndexSettings

_NARROWING = 8


class HNSWIndex(FaissIndex):
    """Vectors in a graph of near neighbours (HNSW), through which a search goes with a beam, best first.

    A search in two stages goes with a narrow beam first and then, from the start, with the whole one: Faiss cannot
    widen a beam. The second stage is a search in one. Removed vectors stay in the graph and are passed over. Where a
    filter leaves fewer vectors than the beam would meet, they are all compared.
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
        """An index of these vectors, [n, dimension]."""
        graph = faiss.IndexHNSWFlat(vectors.shape[1], settings.hnsw.links, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = settings.hnsw.build_beam
        index: Any = faiss.IndexIDMap2(graph)
        index.add_with_ids(vectors, ids)
        return cls(index, Trained(len(ids)), settings, clock)

    @classmethod
    def load(cls, dump: bytes, trained: Trained, settings: IndexSettings) -> "HNSWIndex":
        """The index that ``dump`` wrote; what was removed before that is there again."""
        return cls(faiss.deserialize_index(np.frombuffer(dump, np.uint8)), trained, settings)

    @property
    def size(self) -> int:
        """How many vectors it holds."""
        return int(self._index.ntotal) - len(self._removed)

    @property
    def worn(self) -> bool:
        """Whether so many of its vectors are removed that it should be built again."""
        return len(self._removed) > self._settings.removed_share * int(self._index.ntotal)

    def remove(self, ids: Ids) -> None:
        """Pass vectors over from now on; ids that it does not hold are ignored."""
        with self._changing():
            self._removed.add(np.intersect1d(ids, self._row_ids()))

    def search(self, query: Vector, k: int, allowed: Ids | None = None) -> Iterator[StageHits]:
        """The ``k`` nearest of the vectors that the beam meets."""
        asked = self._asked(query)
        with self._lock.reading():
            version, most = self._version, max(1, min(k, self.size))
            candidates = self.size if allowed is None else len(self._removed.without(allowed))
            # Among vectors of which few count, a beam must be so much wider to hold as many that do.
            beam = math.ceil(max(most, self._settings.hnsw.beam) * self._index.ntotal / max(1, candidates))
        pace = self._paces[allowed is not None]
        if candidates <= beam * 2 * self._settings.hnsw.links:
            scan = partial(self._scan_all, asked, allowed)
            slices = [Slice(0, candidates)]
            return self._staged(most, slices, version, lambda _begin, _end, *into: scan(*into), pace, units=0)
        beams = [max(most, beam // _NARROWING), beam] if pace.stages(beam) > 1 else [beam]
        return self._widening(most, asked, allowed, beams, pace)

    def ids(self) -> Ids:
        """The ids it holds, ascending."""
        return np.sort(self._removed.without(self._row_ids()))

    def dump(self) -> bytes:
        """The index as bytes, without what its class knows beside it."""
        return bytes(faiss.serialize_index(self._index))

    def _widening(
        self, k: int, asked: Vector, allowed: Ids | None, beams: Sequence[int], pace: Pace
    ) -> Iterator[StageHits]:
        for stage, beam in enumerate(beams, start=1):
            with self._lock.reading():
                began = self._clock()
                hits = Ranking(k).take(partial(self._scan_graph, asked, allowed, beam))
                seconds = self._clock() - began
            pace.learn(beam, seconds)
            yield StageHits(*hits, stage, len(beams))

    def _scan_graph(self, asked: Vector, allowed: Ids | None, beam: int, ids: Ids, scores: Vector) -> None:
        selector = self._removed.selector(allowed)
        parameters = faiss.SearchParametersHNSW(efSearch=beam, sel=selector)  # type: ignore[attr-defined]
        self._index.search(asked, len(ids), params=parameters, I=ids[None], D=scores[None])

    def _scan_all(self, asked: Vector, allowed: Ids | None, ids: Ids, scores: Vector) -> None:
        selector = self._removed.selector(allowed)
        if selector is not None:
            selector = faiss.IDSelectorTranslated(self._index.id_map, selector)
        parameters = faiss.SearchParameters(sel=selector)  # type: ignore[call-arg]
        self._vectors.search(asked, len(ids), params=parameters, I=ids[None], D=scores[None])
        found = ids >= 0
        ids[found] = self._row_ids()[ids[found]]

    def _row_ids(self) -> Ids:
        """The rows' ids where Faiss has them, [rows]; good while the lock is held."""
        rows: Ids = faiss.rev_swig_ptr(self._index.id_map.data(), self._index.ntotal)
        return rows
