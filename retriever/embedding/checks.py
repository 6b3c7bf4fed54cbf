"""What every vector must be before it is kept or searched for, whoever made it."""

import numpy as np

from protocol.errors import InvalidRequest
from retriever.embedding.base import Vector


def checked_query(query: Vector, dimension: int) -> Vector:
    """The query, [dimension], as the one row that Faiss reads. Raises InvalidRequest as ``checked_vectors`` does."""
    # The same in fewer calls, as a search waits for it.
    if query.shape == (dimension,) and query.dtype == np.float32 and 0 < query.dot(query) < np.inf:
        return np.ascontiguousarray(query).reshape(1, dimension)
    return checked_vectors(query[np.newaxis], dimension)


def checked_vectors(vectors: Vector, dimension: int) -> Vector:
    """The vectors, [n, dimension], laid out as Faiss reads them.

    Raises InvalidRequest for another dimension, for what is not finite, and for a zero vector, which has no direction:
    one such vector would spoil every ranking it stands in.
    """
    if vectors.ndim != 2 or vectors.shape[1] != dimension:
        raise InvalidRequest(f"vectors of shape {list(vectors.shape)} where [n, {dimension}] is expected")
    squares = np.einsum("nd,nd->n", vectors, vectors)
    # A comparison with what is not a number is false.
    good = (squares > 0) & (squares < np.inf)
    if not good.all():
        worst = squares[int(np.argmin(good))]
        raise InvalidRequest("a zero vector has no direction" if worst == 0 else "a vector is not finite")
    return np.ascontiguousarray(vectors, np.float32)
