"""The contract of embedders."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

Vector = npt.NDArray[np.float32]
"""Unit vectors, one or several: [dimension] or [n, dimension]."""


class Embedder(Protocol):
    """Turns texts into unit vectors whose inner product says how near they are.

    Both calls may come from several threads at once. They raise Unavailable when a later try may succeed,
    InvalidRequest when these texts never will, ConfigError when nothing will before the configuration changes.
    """

    @property
    def name(self) -> str:
        """What its model is called."""

    @property
    def dimension(self) -> int:
        """The length of a vector."""

    @property
    def max_tokens(self) -> int:
        """How many tokens of a document it sees, special ones not counted."""

    @property
    def fingerprint(self) -> str:
        """What must be equal for two embedders' vectors to be comparable."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Counts as the embedder counts; neither truncates nor pads."""

    def embed_query(self, text: str) -> Vector:
        """The vector of a question, [dimension]; what it cannot see of a long text is left out."""

    def embed_documents(self, texts: Sequence[str]) -> Vector:
        """The vectors of texts, [n, dimension], in their order."""


def unit_rows(vectors: Vector) -> Vector:
    """The rows scaled to length 1; a zero row stays zero, and is near to nothing."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.ascontiguousarray(vectors / np.where(lengths > 0, lengths, 1), dtype=np.float32)
