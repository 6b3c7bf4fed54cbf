"""What every vector must be before it is kept or searched for, whoever made it."""

import numpy as np

from protocol.errors import InvalidRequest
from retriever.embedding.base import Vector


def query_row(query: Vector, dimension: int) -> Vector:
    """The query, [dimension], as the one row that Faiss reads, whatever its numbers are. Raises InvalidRequest."""
    if query.shape != (dimension,):
        raise _of_another_shape(query[np.newaxis], dimension)
    return np.ascontiguousarray(query, np.float32).reshape(1, dimension)


def checked_query(query: Vector, dimension: int) -> Vector:
    """The query as ``query_row`` gives it. Raises InvalidRequest as ``checked_vectors`` does."""
    return checked_vectors(query_row(query, dimension), dimension)


def checked_vectors(vectors: Vector, dimension: int) -> Vector:
    """The vectors, [n, dimension], laid out as Faiss reads them.

    Raises InvalidRequest for another dimension, for what is not finite, and for a zero vector, which has no direction:
    one such vector would spoil every ranking it stands in.
    """
    if vectors.ndim != 2 or vectors.shape[1] != dimension:
        raise _of_another_shape(vectors, dimension)
    squares = np.einsum("nd,nd->n", vectors, vectors)
    # A comparison with what is not a number is false.
    good = (squares > 0) & (squares < np.inf)
    if not good.all():
        worst = squares[int(np.argmin(good))]
        raise InvalidRequest("a zero vector has no direction" if worst == 0 else "a vector is not finite")
    return np.ascontiguousarray(vectors, np.float32)


def _of_another_shape(vectors: Vector, dimension: int) -> InvalidRequest:
    return InvalidRequest(f"vectors of shape {list(vectors.shape)} where [n, {dimension}] is expected")
