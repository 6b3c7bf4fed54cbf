"""Knowledge graphs: entities, the relations between them, and how a search uses them."""

from enum import StrEnum
from typing import NamedTuple

import msgspec


class GraphMode(StrEnum):
    """How a search uses the collection's graph, in LightRAG's terms.

    ``naive``: not at all. ``local``: from the entities that the question names. ``global``: from the statements that
    are nearest to the question. ``hybrid``: from both. ``mix``: from both and from the chunks that a search without a
    graph finds.
    """

    NAIVE = "naive"
    LOCAL = "local"
    GLOBAL = "global"
    HYBRID = "hybrid"
    MIX = "mix"


class Triplet(NamedTuple):
    """One relation between two entities, as a text states it."""

    head: str
    relation: str
    tail: str


class Entity(msgspec.Struct, frozen=True):
    """An entity that a search used. ``score`` orders the entities of one search. ``chunks`` mention it."""

    name: str
    score: float
    chunks: int


class Relation(msgspec.Struct, frozen=True):
    """A relation that a search used, and the chunk that states it: number ``index`` of ``document_id``."""

    head: str
    relation: str
    tail: str
    score: float
    document_id: str
    index: int


class Source(msgspec.Struct, frozen=True):
    """The chunk that states a relation: number ``index`` of ``document_id``."""

    document_id: str
    index: int


class Path(msgspec.Struct, frozen=True):
    """A way from a root entity along relations, without a cycle: ``Alice -like-> Titanic -type-> Tragedy``.

    ``entities`` are at least two, the root first. ``relations``, one fewer, stand between them as they are read:
    ``-like->``, or ``<-like-`` if the relation leads from the next entity to the one before it. ``sources`` state them,
    one each. ``score`` is the cosine of path and question.
    """

    entities: tuple[str, ...]
    relations: tuple[str, ...]
    sources: tuple[Source, ...]
    score: float

    @property
    def text(self) -> str:
        """The path as it is read."""
        steps = zip(self.relations, self.entities[1:], strict=True)
        return " ".join([self.entities[0], *(part for step in steps for part in step)])


class Subgraph(msgspec.Struct, frozen=True):
    """The part of a graph that a search used; ``entities`` and ``relations`` are ordered best first.

    ``paths`` of one root entity stand together, the best first, and root entities by their relevance.
    """

    entities: tuple[Entity, ...] = ()
    relations: tuple[Relation, ...] = ()
    paths: tuple[Path, ...] = ()
