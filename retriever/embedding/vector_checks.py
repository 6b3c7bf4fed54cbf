"""The checks that every vector passes before it is stored or searched for."""

import numpy as np

from protocol.errors import InvalidRequest
from retriever.embedding.base import Vector


def query_row(query: Vector, dimension: int) -> Vector:
    """Return the query, [dimension], as the row [1, dimension] that Faiss reads. Raises InvalidRequest."""
    if query.shape != (dimension,):
        raise _wrong_shape(query[np.newaxis], dimension)
    return np.ascontiguousarray(query, np.float32).reshape(1, dimension)


def checked_query(query: Vector, dimension: int) -> Vector:
    """Return ``query_row`` of the query. Raises InvalidRequest like ``checked_vectors``."""
    return checked_vectors(query_row(query, dimension), dimension)


def checked_vectors(vectors: Vector, dimension: int) -> Vector:
    """Return vectors, [n, dimension], in the memory layout that Faiss reads.

    Raises InvalidRequest for another dimension, for values that are not finite, and for a zero vector. A zero vector
    has no direction and would spoil every ranking.
    """
    if vectors.ndim != 2 or vectors.shape[1] != dimension:
        raise _wrong_shape(vectors, dimension)
    squares = np.einsum("nd,nd->n", vectors, vectors)
    # Comparisons with NaN are false.
    good = (squares > 0) & (squares < np.inf)
    if not good.all():
        worst = squares[int(np.argmin(good))]
        raise InvalidRequest(
            "a zero vector has no direction" if worst == 0 else "a vector contains values that are not finite"
        )
    return np.ascontiguousarray(vectors, np.float32)


def _wrong_shape(vectors: Vector, dimension: int) -> InvalidRequest:
    return InvalidRequest(f"expected vectors of shape [n, {dimension}], not {list(vectors.shape)}")
