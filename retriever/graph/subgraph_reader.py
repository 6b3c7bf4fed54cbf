"""From what a search used of a graph in memory to its names, which are read from the store."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from protocol.graph import Entity, Path, Relation, Source, Subgraph
from retriever.embedding.base import Vector
from retriever.graph.knowledge_graph import Activation, KnowledgeGraph
from retriever.graph.paths import FoundPath
from retriever.settings import GraphSettings
from retriever.store.chunks import Chunks, Ids
from retriever.store.database import Transaction
from retriever.store.facts import Facts, StoredRelation

_MOST_RELATIONS = 30


class _Told(NamedTuple):
    """A path, and the facts that it tells: head, relation and tail of each."""

    path: Path
    facts: frozenset[tuple[str, str, str]]

    def continues(self, other: "_Told") -> bool:
        """Whether it begins with all of the other path."""
        length = len(other.path.relations)
        return (
            self.path.entities[: length + 1] == other.path.entities
            and self.path.relations[:length] == other.path.relations
        )


class SubgraphReader:
    """Reads entities, relations and paths. Leaves out what is gone from the store since the graph was read."""

    def __init__(self, chunks: Chunks, facts: Facts, settings: GraphSettings) -> None:
        self._chunks = chunks
        self._facts = facts
        self._settings = settings

    def read(
        self,
        transaction: Transaction,
        collection: int,
        graph: KnowledgeGraph,
        activation: Activation,
        near: Vector,
        matching: Ids | None,
    ) -> Subgraph:
        """Return what a question activates, and the paths from its entities.

        ``near`` are the cosines of all statements and the question, [s]. Relations and paths are stated by
        ``matching`` chunks, if only those are allowed.
        """
        settings = self._settings
        allowed = None if matching is None else graph.allowed(matching)
        entities = graph.best_entities(activation, settings.entities)
        weights = graph.relations_in(activation, _MOST_RELATIONS, allowed)
        found = graph.paths.from_roots(graph.rows_of(entities), near, settings.hops, settings.paths, allowed)
        used = dict.fromkeys([*weights, *(relation for path in found for relation, _ in path.steps)])
        relations = self._facts.relations(transaction, list(used))
        sources = self._chunks.sources(transaction, collection, [relation.chunk for relation in relations.values()])
        stated = {id_: relation for id_, relation in relations.items() if relation.chunk in sources}
        names = self._facts.names(transaction, list(entities))
        return Subgraph(
            tuple(
                Entity(names[id_], weight, graph.chunk_count(id_)) for id_, weight in entities.items() if id_ in names
            ),
            tuple(
                _relation(stated[id_], weight, sources[stated[id_].chunk])
                for id_, weight in weights.items()
                if id_ in stated
            ),
            _by_root(
                _best_told(_paths(found, stated, sources), settings.paths),
                [names[id_] for id_ in entities if id_ in names],
            ),
        )


def _relation(stored: StoredRelation, weight: float, source: Source) -> Relation:
    return Relation(stored.head, stored.relation, stored.tail, weight, source.document_id, source.index)


def _paths(
    found: Iterable[FoundPath], stated: Mapping[int, StoredRelation], sources: Mapping[int, Source]
) -> Iterable[_Told]:
    """The paths whose relations are all still there."""
    for path in found:
        steps = [(stated[id_], against) for id_, against in path.steps if id_ in stated]
        if len(steps) < len(path.steps):
            continue
        first, turned = steps[0]
        entities = [first.tail if turned else first.head]
        entities += [relation.head if against else relation.tail for relation, against in steps]
        relations = [f"<-{step.relation}-" if against else f"-{step.relation}->" for step, against in steps]
        told = Path(
            tuple(entities), tuple(relations), tuple(sources[relation.chunk] for relation, _ in steps), path.score
        )
        yield _Told(told, frozenset((relation.head, relation.relation, relation.tail) for relation, _ in steps))


def _best_told(paths: Iterable[_Told], count: int) -> list[Path]:
    """The best paths, each of which tells something new. A path that another continues gives way to it."""
    kept: list[_Told] = []
    told: set[tuple[str, str, str]] = set()
    for path in paths:
        if path.facts <= told:
            continue
        told |= path.facts
        kept = [*(other for other in kept if not path.continues(other)), path]
        if len(kept) == count:
            break
    return [path.path for path in kept]


def _by_root(paths: Iterable[Path], roots: Iterable[str]) -> tuple[Path, ...]:
    """The paths of each root together, the best first; the roots in this order."""
    order = {root: place for place, root in enumerate(roots)}
    return tuple(sorted(paths, key=lambda path: (order.get(path.entities[0], len(order)), -path.score)))
