"""The contract of vector indexes."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from retriever.embedding.base import Vector

Ids = npt.NDArray[np.int64]
"""Chunk ids, [n]."""


class StageHits(NamedTuple):
    """The nearest vectors known after ``stage`` (from 1) ``of`` so many: ids and inner products, best first."""

    ids: Ids
    scores: Vector
    stage: int
    of: int


class Trained(NamedTuple):
    """What an index was when it was built: of how many vectors, and how uneven its lists were (1: even)."""

    vectors: int
    imbalance: float = 1.0


class VectorIndex(Protocol):
    """Vectors by chunk id, searched by inner product in stages.

    One thread changes an index; any number may search meanwhile. It proposes ids, and the store says which are live.
    """

    @property
    def kind(self) -> str:
        """The name of the implementation, kept with a saved index."""

    @property
    def size(self) -> int:
        """How many vectors it holds."""

    def search(self, query: Vector, k: int, allowed: Ids | None = None) -> Iterator[StageHits]:
        """The ``k`` nearest to ``query``, [dimension], among ``allowed`` (ascending ids); fewer if there are fewer.

        Hits come by score, the highest first, and then by id. Every stage gives the best of all vectors seen so far;
        the last is what a search in one stage would have given then, to the last bit. Raises InvalidRequest for a
        query of another dimension, one that is not finite, and a zero one.
        """

    def add(self, ids: Ids, vectors: Vector) -> None:
        """Add vectors, [n, dimension], under ids that the index never held. Raises InvalidRequest as a search does."""

    def remove(self, ids: Ids) -> None:
        """Remove vectors; ids that the index does not hold are ignored."""

    def ids(self) -> Ids:
        """The ids it holds, ascending."""


class TrainedIndex(VectorIndex, Protocol):
    """An index that takes so long to build that it is kept on disk."""

    trained: Trained

    @property
    def worn(self) -> bool:
        """Whether so much has changed since it was built that it should be built anew."""

    def dump(self) -> bytes:
        """The index as bytes, from which ``load`` of its implementation makes an equal one."""
