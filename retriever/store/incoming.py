"""Documents and chunks on their way into the store, and how it keeps their triplets."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from blake3 import blake3

from protocol.filters import Attributes
from protocol.graph import Triplet
from protocol.retrieval import Lines
from retriever.embedding.base import Vector

_decoder = msgspec.json.Decoder(tuple[Triplet, ...])


class IncomingDocument(msgspec.Struct, frozen=True):
    """A checked document that is not stored yet. Queued jobs keep it encoded as MessagePack.

    ``pages`` are the first lines of its pages, from 1; empty if it has none. ``triplets`` came with it.
    """

    document_id: str
    text: str
    filename: str
    title: str | None
    attributes: Attributes
    pages: tuple[int, ...] = ()
    triplets: tuple[Triplet, ...] = ()

    @property
    def content_hash(self) -> str:
        """The hash of everything a reader can see. An upload with an equal hash changes nothing."""
        seen = (self.text, self.filename, self.title, sorted(self.attributes.items()))
        # Stores have the hashes of documents without triplets as they were before there were any.
        return blake3(msgspec.msgpack.encode((*seen, self.triplets) if self.triplets else seen)).hexdigest()


class SourceText(NamedTuple):
    """A text to read, such as a document's or a chunk's, the document's title, and the triplets that came with it."""

    text: str
    title: str | None = None
    triplets: tuple[Triplet, ...] = ()


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


def stored_triplets(triplets: Sequence[Triplet]) -> str | None:
    """Return what the store keeps of triplets."""
    return msgspec.json.encode(triplets).decode() if triplets else None


def read_triplets(column: str | None) -> tuple[Triplet, ...]:
    """Return the triplets that the store has kept."""
    return () if column is None else _decoder.decode(column)
