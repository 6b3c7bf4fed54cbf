"""A walk over a graph's relations that reads a bounded part of it, however large its hubs are."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple

from retriever.store.graph_outline import Edge

_MOST_EDGES = 2_000
"""Relations of one entity that are looked at. A hub may have many more."""

_MOST_READ = 20_000
"""Relations that one walk looks at."""


class Walked(NamedTuple):
    """What a walk has found: the ids of entities with their distances from the roots, and what relates them.

    It is ``truncated`` if a bound left something out.
    """

    depths: dict[int, int]
    edges: list[Edge]
    truncated: bool


class Walk:
    """Walks breadth-first along relations in both directions. Each entity and each statement of a fact counts once.

    ``edges_of`` returns at most a given number of an entity's relations.
    """

    def __init__(self, edges_of: Callable[[int, int], Sequence[Edge]], max_nodes: int, max_relations: int) -> None:
        self._edges_of = edges_of
        self._max_nodes = max_nodes
        self._max_relations = max_relations
        self._depths: dict[int, int] = {}
        self._stated: dict[tuple[int, str, int], Edge] = {}
        self._left = _MOST_READ
        self._truncated = False

    def from_roots(self, roots: Sequence[int], max_depth: int) -> Walked:
        """Return what is at most ``max_depth`` relations away from the ``roots``, the nearest first."""
        frontier = self._reached(roots, 0)
        for depth in range(max_depth + 1):
            ranked = [self._neighbours(entity) for entity in frontier]
            if depth < max_depth:
                # In turns, so that a hub among the roots leaves room for the neighbours of the others.
                turns = (entity for entity in chain.from_iterable(zip_longest(*ranked)) if entity is not None)
                frontier = self._reached(turns, depth + 1)
        edges = [edge for edge in self._stated.values() if edge.head in self._depths and edge.tail in self._depths]
        cut = len(edges) > self._max_relations
        return Walked(self._depths, edges[: self._max_relations], self._truncated or cut)

    def _reached(self, entities: Iterable[int], depth: int) -> list[int]:
        """Note these entities, as far as there is room, and return the new ones."""
        new: list[int] = []
        for entity in entities:
            if entity in self._depths:
                continue
            if len(self._depths) == self._max_nodes:
                self._truncated = True
                break
            self._depths[entity] = depth
            new.append(entity)
        return new

    def _neighbours(self, entity: int) -> list[int]:
        """The entities that are related to this one, those with the most relations first."""
        limit = min(_MOST_EDGES, self._left)
        found = self._edges_of(entity, limit + 1)
        self._truncated |= len(found) > limit
        self._left -= len(found[:limit])
        counts = Counter[int]()
        for edge in found[:limit]:
            self._stated.setdefault(edge.stated, edge)
            counts[edge.tail if edge.head == entity else edge.head] += 1
        return [other for other, _ in counts.most_common()]
