"""The interface of embedders."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

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


def unit_rows(vectors: Vector) -> Vector:
    """Scale each row to length 1. A zero row stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.ascontiguousarray(vectors / np.where(lengths > 0, lengths, 1), dtype=np.float32)
