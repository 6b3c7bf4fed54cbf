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
        the last is what a search in one stage would have given then, to the last bit.
        """

    def add(self, ids: Ids, vectors: Vector) -> None:
        """Add vectors, [n, dimension], under ids that the index does not hold."""

    def remove(self, ids: Ids) -> None:
        """Remove vectors; ids that the index does not hold are ignored."""

    def ids(self) -> Ids:
        """The ids it holds, ascending."""
