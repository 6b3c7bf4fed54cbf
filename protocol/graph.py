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
    """The chunk that states a relation: number ``index`` of ``document_id``. Its text has the ``content_hash``."""

    document_id: str
    index: int
    content_hash: str


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


class ContextBudget(msgspec.Struct, frozen=True):
    """The most tokens of a prompt's context, in LightRAG's terms; None where the layout decides.

    ``entity`` bounds the paths of one root entity, ``relation`` all paths, and ``total`` the whole prompt, from the
    system prompt to the question.
    """

    entity: int | None = None
    relation: int | None = None
    total: int | None = None

    @property
    def without_paths(self) -> bool:
        """Whether no path can be in the prompt."""
        return self.entity == 0 or self.relation == 0


UNBOUNDED = ContextBudget()


class Subgraph(msgspec.Struct, frozen=True):
    """The part of a graph that a search used; ``entities`` and ``relations`` are ordered best first.

    ``paths`` of one root entity stand together, the best first, and root entities by their relevance.
    """

    entities: tuple[Entity, ...] = ()
    relations: tuple[Relation, ...] = ()
    paths: tuple[Path, ...] = ()


class GraphState(StrEnum):
    """Whether a collection has a graph.

    ``none``: the stack has none, or no document names an entity. ``reading``: its first chunks are still read.
    ``ready``: searches can use it.
    """

    NONE = "none"
    READING = "reading"
    READY = "ready"


class GraphRequest(msgspec.Struct, frozen=True):
    """Asks for a part of a collection's graph: what is at most ``max_depth`` relations away from ``entities``.

    Without ``entities``, the most mentioned ones and the relations between them. At most ``max_nodes`` entities and
    ``max_relations`` relations are wanted.
    """

    tenant: str
    collection: str
    entities: tuple[str, ...] = ()
    max_depth: int = 2
    max_nodes: int = 50
    max_relations: int = 100


class GraphSize(msgspec.Struct, frozen=True):
    """How much a collection's graph holds."""

    entities: int
    statements: int
    relations: int


class ViewedEntity(msgspec.Struct, frozen=True):
    """An entity of a view: ``mentions`` statements mention it. ``depth`` relations lead to it from those asked for."""

    name: str
    mentions: int
    depth: int


class ViewedRelation(msgspec.Struct, frozen=True):
    """A relation of a view, and the first chunk that states it: number ``index`` of ``document_id``."""

    head: str
    relation: str
    tail: str
    document_id: str
    index: int


class GraphView(msgspec.Struct, frozen=True):
    """A part of a collection's graph, as the store has it now.

    ``entities`` are ordered by depth. ``relations`` are between them. A ``truncated`` view lacks some of what was asked
    for. ``size`` is that of the whole graph, which does not know ``unread_chunks`` chunks of the collection yet.
    ``unreadable_chunks`` could not be read, so it has nothing of them.
    """

    entities: tuple[ViewedEntity, ...]
    relations: tuple[ViewedRelation, ...]
    truncated: bool
    size: GraphSize
    unread_chunks: int
    unreadable_chunks: int
