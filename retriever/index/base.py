"""The interface of vector indexes."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from retriever.embedding.base import Vector
from retriever.store.chunks import Ids


class StageHits(NamedTuple):
    """The nearest vectors after ``stage`` (from 1) of ``of`` stages: ids and inner products, best first."""

    ids: Ids
    scores: Vector
    stage: int
    of: int


class Trained(NamedTuple):
    """The state of an index when it was built: its number of vectors and the imbalance of its lists (1: even)."""

    vectors: int
    imbalance: float = 1.0


class VectorIndex(Protocol):
    """Vectors by chunk id, searched by inner product in stages.

    One thread changes an index while any number of threads search it. An index proposes ids. The store decides which of
    them are live.
    """

    @property
    def kind(self) -> str:
        """The name of the implementation, stored with a saved index."""

    @property
    def size(self) -> int:
        """The number of vectors."""

    def search(self, query: Vector, k: int, allowed: Ids | None = None) -> Iterator[StageHits]:
        """Yield the ``k`` nearest to ``query``, [dimension], among ``allowed`` (ascending ids), in stages.

        Hits are sorted by descending score, then by id. There are fewer than ``k`` if the index has fewer. Each stage
        gives the best of all vectors seen so far. The last stage equals a search in a single stage at that time, bit by
        bit. Raises InvalidRequest if the query has another dimension, is not finite or is zero.
        """

    def add(self, ids: Ids, vectors: Vector) -> None:
        """Add vectors, [n, dimension], with ids that were never in the index. Raises InvalidRequest like a search."""

    def remove(self, ids: Ids) -> None:
        """Remove vectors. Unknown ids are ignored."""

    def ids(self) -> Ids:
        """Return the ids of all vectors, ascending."""


class TrainedIndex(VectorIndex, Protocol):
    """An index that takes long to build and is therefore saved on disk."""

    trained: Trained

    @property
    def needs_rebuild(self) -> bool:
        """Whether it has changed so much since it was built that it should be rebuilt."""

    def dump(self) -> bytes:
        """Serialize the index. ``IndexBuilder.load`` restores it."""
