"""Paths of a collection's graph: from an entity along relations, pruned by their similarity to the question."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from retriever.embedding.base import Vector
from retriever.store.chunks import Ids

Rows = npt.NDArray[np.int64]
"""Rows of entities, statements or edges, [n]."""

Allowed = npt.NDArray[np.bool_]
"""Whether a search may use each statement, [s]."""

_MOST_EDGES = 16
"""Edges of one entity along which paths go on: those whose statements are nearest to the question."""

_MOST_PARALLEL = 2
"""Of them, edges to the same neighbour. Many sentences state the same relation."""

_SPARE = 4
"""Paths found for each one wanted. Some tell what others tell, or are gone from the store."""


class FoundPath(NamedTuple):
    """A path from the entity with the id ``root``. ``steps`` are relations by id, and whether against their direction.

    ``score`` is the cosine of the question and the sum of the vectors of the statements that state it.
    """

    root: int
    steps: tuple[tuple[int, bool], ...]
    score: float


class _Front(NamedTuple):
    """Paths of one length, [p]: the rows of entities [p, length + 1], the roots first, and of edges [p, length].

    ``sums`` [p, dimension] are those of their statements' vectors, and ``dots`` [p] of those vectors' cosines.
    """

    entities: Rows
    edges: Rows
    sums: Vector
    dots: Vector

    def taken(self, places: Rows) -> "_Front":
        return _Front(self.entities[places], self.edges[places], self.sums[places], self.dots[places])

    def scores(self) -> Vector:
        """The cosines of sums and question. A sum of zero has none, and counts as 0."""
        lengths = np.linalg.norm(self.sums, axis=1)
        scores: Vector = np.where(lengths > 1e-6, self.dots / np.maximum(lengths, 1e-6), 0.0).clip(-1.0, 1.0)
        return scores


class PathFinder:
    """Finds paths as DepCache's retrieval does: simple ones, within a number of hops from the question's entities.

    ``entities`` [e] and ``relations`` [r] are ids. ``ends`` [r, 2] are the rows of each relation's head and tail, and
    ``statements`` [r] those of the statements that state it, which have ``embeddings``, [s, dimension]. A relation can
    be walked both ways. One from an entity to itself leads nowhere and is left out. A path's similarity is that of its
    statements, which are embedded already.

    The work is bounded by hops, roots and paths, also at a hub: of an entity's edges, those nearest to the question
    are followed, and of the paths of one length, each root's best ones.
    """

    def __init__(self, entities: Ids, relations: Ids, ends: Rows, statements: Rows, embeddings: Vector) -> None:
        self._entities = entities
        real = np.flatnonzero(ends[:, 0] != ends[:, 1])
        sources = np.concatenate([ends[real, 0], ends[real, 1]])
        order = np.argsort(sources, kind="stable")
        self._first = np.searchsorted(sources[order], np.arange(len(entities) + 1))
        places = np.concatenate([real, real])[order]
        self._relations = relations[places]
        self._against = order >= len(real)
        self._targets = np.concatenate([ends[real, 1], ends[real, 0]])[order]
        self._statements = statements[places]
        self._embeddings = embeddings

    def from_roots(
        self, roots: Sequence[int], near: Vector, hops: int, count: int, allowed: Allowed | None = None
    ) -> list[FoundPath]:
        """Return several times ``count`` paths from the entities in rows ``roots``, best first.

        They have 1 to ``hops`` steps. ``near`` [s] are the statements' cosines with the question. Only statements that
        are ``allowed`` [s] are used.
        """
        if not roots or count < 1:
            return []
        weights = near if allowed is None else np.where(allowed, near, -np.inf)
        known: dict[int, Rows] = {}
        size = len(roots)
        front = _Front(
            np.array(roots, np.int64)[:, None],
            np.zeros((size, 0), np.int64),
            np.zeros((size, self._embeddings.shape[1]), np.float32),
            np.zeros(size, np.float32),
        )
        found: list[FoundPath] = []
        for _ in range(hops):
            front = self._further(front, weights, known)
            scores = front.scores()
            best = _best_of_each(front.entities[:, 0], scores, count)
            front = front.taken(best)
            found += self._described(front, scores[best])
        found.sort(key=lambda path: -path.score)
        return found[: _SPARE * count]

    def _further(self, front: _Front, weights: Vector, known: dict[int, Rows]) -> _Front:
        """The paths that are one step longer, along the best edges of each end, to entities that are new to a path."""
        continued = [self._best_edges(end, weights, known) for end in front.entities[:, -1].tolist()]
        paths = np.repeat(np.arange(len(continued)), [len(edges) for edges in continued])
        edges = np.concatenate([*continued, np.zeros(0, np.int64)])
        simple = (front.entities[paths] != self._targets[edges][:, None]).all(axis=1)
        paths, edges = paths[simple], edges[simple]
        before = front.taken(paths)
        rows = self._statements[edges]
        return _Front(
            np.column_stack([before.entities, self._targets[edges]]),
            np.column_stack([before.edges, edges]),
            before.sums + self._embeddings[rows],
            before.dots + weights[rows],
        )

    def _best_edges(self, entity: int, weights: Vector, known: dict[int, Rows]) -> Rows:
        """The edges of an entity whose statements weigh most, best first."""
        if entity not in known:
            first, last = self._first[entity], self._first[entity + 1]
            heavy = weights[self._statements[first:last]]
            places = _best_of_each(self._targets[first:last], heavy, _MOST_PARALLEL)
            places = places[np.argsort(-heavy[places], kind="stable")][:_MOST_EDGES]
            known[entity] = first + places[np.isfinite(heavy[places])]
        return known[entity]

    def _described(self, front: _Front, scores: Vector) -> list[FoundPath]:
        roots = self._entities[front.entities[:, 0]].tolist()
        relations, against = self._relations[front.edges].tolist(), self._against[front.edges].tolist()
        return [
            FoundPath(root, tuple(zip(along, turned, strict=True)), score)
            for root, along, turned, score in zip(roots, relations, against, scores.tolist(), strict=True)
        ]


def _best_of_each(groups: Rows, scores: Vector, count: int) -> Rows:
    """The places of the ``count`` highest scores of each group."""
    order = np.lexsort((-scores, groups))
    firsts = np.searchsorted(groups[order], groups[order])
    best: Rows = order[np.arange(len(order)) - firsts < count]
    return best
