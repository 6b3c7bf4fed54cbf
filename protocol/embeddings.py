"""Texts to embed, and their vectors."""

from typing import Literal

import msgspec

TextKind = Literal["document", "query"]
"""What a text is. Some models embed questions differently from what answers them."""


class EmbeddingRequest(msgspec.Struct, frozen=True):
    """Texts to embed as one kind of text with the embedder ``model``, into vectors of ``dimensions`` if that is set."""

    texts: tuple[str, ...]
    model: str
    kind: TextKind = "document"
    dimensions: int | None = None


class Embeddings(msgspec.Struct, frozen=True):
    """The unit vectors of texts, in order, each as little-endian float32. ``tokens`` counts the tokens of all texts."""

    vectors: tuple[bytes, ...]
    tokens: int
