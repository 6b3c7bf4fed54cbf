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


class Subgraph(msgspec.Struct, frozen=True):
    """The part of a graph that a search used; both parts are ordered best first."""

    entities: tuple[Entity, ...] = ()
    relations: tuple[Relation, ...] = ()
