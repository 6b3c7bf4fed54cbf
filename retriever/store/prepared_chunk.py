"""A chunk on its way into the store: its text, its id, its embedding and its lines."""

from typing import NamedTuple

from protocol.graph import Triplet
from protocol.retrieval import Lines
from retriever.embedding.base import Vector


class ChunkText(NamedTuple):
    """A chunk's text. ``start`` and ``end`` are the character offsets of its body in the document's text."""

    text: str
    content_hash: str
    start: int
    end: int


class PreparedChunk(NamedTuple):
    """A chunk that is ready to be stored. ``embedding`` has the shape [dimension].

    ``triplets`` are those of its document that it states.
    """

    id: int
    chunk: ChunkText
    embedding: Vector
    lines: Lines
    triplets: tuple[Triplet, ...] = ()
