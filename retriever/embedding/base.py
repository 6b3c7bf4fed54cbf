"""The interface of embedders, what they do for callers, and the checks of vectors before they are used."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from protocol.errors import InvalidRequest, UnknownModel
from protocol.retrieval import EmbeddingRequest, Embeddings

Vector = npt.NDArray[np.float32]
"""One or several unit vectors: [dimension] or [n, dimension]."""


class Embedder(Protocol):
    """Turns texts into unit vectors whose inner product measures similarity. Thread-safe.

    The embed calls raise Unavailable if a retry may succeed, InvalidRequest if these texts never will, and ConfigError
    if the configuration is wrong.
    """

    @property
    def name(self) -> str:
        """The name of the model."""

    @property
    def dimension(self) -> int:
        """The length of a vector."""

    @property
    def max_tokens(self) -> int:
        """The longest document in tokens, not counting special tokens. The rest is ignored."""

    @property
    def fingerprint(self) -> str:
        """Identifies the vector space. Only vectors with equal fingerprints are comparable."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that counts like the embedder. It neither truncates nor pads."""

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a query, [dimension]. A query that is too long is truncated."""

    def embed_documents(self, texts: Sequence[str]) -> Vector:
        """Return the vectors of texts in order, [n, dimension]."""


def embed_request(embedder: Embedder, request: EmbeddingRequest) -> Embeddings:
    """Return the vectors of a caller's texts, none of which is cut.

    Raises UnknownModel, InvalidRequest for other dimensions or too long a text, and what the embedder raises.
    """
    if request.model != embedder.name:
        raise UnknownModel(f"The embedder {request.model!r} is not served; use {embedder.name!r}.", "model")
    if request.dimensions not in (None, embedder.dimension):
        raise InvalidRequest(f"The vectors of {embedder.name} have {embedder.dimension} dimensions.", "dimensions")
    encodings = embedder.tokenizer.encode_batch(list(request.texts), add_special_tokens=False)
    lengths = [len(encoding.ids) for encoding in encodings]
    longest = max(lengths, default=0)
    if longest > embedder.max_tokens:
        raise InvalidRequest(
            f"Text {lengths.index(longest)} has {longest:,} tokens; the limit is {embedder.max_tokens:,}.", "input"
        )
    if request.kind == "document":
        vectors = embedder.embed_documents(request.texts)
    else:
        vectors = np.stack([embedder.embed_query(text) for text in request.texts])
    return Embeddings(tuple(row.tobytes() for row in np.ascontiguousarray(vectors, "<f4")), sum(lengths))


def unit_rows(vectors: Vector) -> Vector:
    """Scale each row to length 1. A zero row stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.ascontiguousarray(vectors / np.where(lengths > 0, lengths, 1), dtype=np.float32)


def query_row(query: Vector, dimension: int) -> Vector:
    """Return the query, [dimension], as the row [1, dimension] that Faiss reads. Raises InvalidRequest."""
    if query.shape != (dimension,):
        raise _wrong_shape(query[np.newaxis], dimension)
    return np.ascontiguousarray(query, np.float32).reshape(1, dimension)


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
