"""Views of a collection's graph: a bounded part of it, for people to look at."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, zip_longest
from typing import NamedTuple

from msgspec.structs import replace

from protocol.documents import CollectionInfo
from protocol.errors import NoGraph, UnknownEntity
from protocol.graph import GraphRequest, GraphState, GraphView, ViewedEntity, ViewedRelation
from retriever.graph.graph_catalog import GraphCatalog
from retriever.graph.names import name_key
from retriever.store.database import Transaction
from retriever.store.facts import Edge, Facts
from retriever.store.store import Store

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


class GraphViewer:
    """Reads views from the store. So they have what is read so far, and nothing of a deleted document.

    Each call runs in the given transaction.
    """

    def __init__(self, store: Store, facts: Facts, catalog: GraphCatalog) -> None:
        self._store = store
        self._facts = facts
        self._catalog = catalog

    def view(self, transaction: Transaction, request: GraphRequest) -> GraphView:
        """Return a part of a collection's graph. Raises UnknownCollection, NoGraph or UnknownEntity."""
        collection = self._store.documents.collection(transaction, request.tenant, request.collection)
        if collection is None:
            raise NoGraph(f"{request.collection!r} has no documents", param="collection")
        size = self._facts.size(transaction, collection)
        if not size.statements:
            raise NoGraph(self._catalog.why_none(transaction, collection, request.collection), param="collection")
        walk = Walk(partial(self._facts.edges, transaction), request.max_nodes, request.max_relations)
        if request.entities:
            walked = walk.from_roots(self._asked_for(transaction, collection, request), request.max_depth)
        else:
            walked = walk.from_roots(self._facts.most_mentioned(transaction, collection, request.max_nodes), 0)
            walked = walked._replace(truncated=walked.truncated or size.entities > len(walked.depths))
        names = self._facts.names(transaction, list(walked.depths))
        return GraphView(
            self._entities(transaction, walked, names),
            self._relations(transaction, collection, walked, names),
            walked.truncated,
            size,
            self._facts.unread_count(transaction, collection),
            self._facts.unreadable_count(transaction, collection),
        )

    def with_states(
        self, transaction: Transaction, tenant: str, infos: Sequence[CollectionInfo]
    ) -> list[CollectionInfo]:
        """Return these collections of a tenant with the states of their graphs."""
        return [replace(info, graph=self._state(transaction, tenant, info.name)) for info in infos]

    def missing_chunks(self, transaction: Transaction) -> tuple[int, int]:
        """Return how many chunks of all collections their graphs do not have yet, and how many could not be read."""
        return self._facts.all_counts(transaction)

    def _state(self, transaction: Transaction, tenant: str, name: str) -> GraphState:
        collection = self._store.documents.collection(transaction, tenant, name)
        if collection is None:
            return GraphState.NONE
        if self._catalog.get(collection) is not None:
            return GraphState.READY
        unread = self._facts.unread_count(transaction, collection)
        return GraphState.READING if unread else GraphState.NONE

    def _asked_for(self, transaction: Transaction, collection: int, request: GraphRequest) -> list[int]:
        """The entities with these names. Raises UnknownEntity."""
        keys = {name: name_key(name) for name in request.entities}
        known = self._facts.known(transaction, collection, filter(None, keys.values()))
        for name, key in keys.items():
            if key not in known:
                raise UnknownEntity(f"no document of {request.collection!r} names {name!r}", param="label")
        return [known[key] for key in keys.values()]

    def _entities(self, transaction: Transaction, walked: Walked, names: Mapping[int, str]) -> tuple[ViewedEntity, ...]:
        mentions = self._facts.mentions(transaction, list(walked.depths))
        return tuple(ViewedEntity(names[id_], mentions[id_], depth) for id_, depth in walked.depths.items())

    def _relations(
        self, transaction: Transaction, collection: int, walked: Walked, names: Mapping[int, str]
    ) -> tuple[ViewedRelation, ...]:
        stating = self._store.chunks.resolve(transaction, collection, sorted({edge.chunk for edge in walked.edges}))
        return tuple(
            ViewedRelation(
                names[edge.head],
                edge.relation,
                names[edge.tail],
                stating[edge.chunk].document_id,
                stating[edge.chunk].index,
            )
            for edge in walked.edges
        )
