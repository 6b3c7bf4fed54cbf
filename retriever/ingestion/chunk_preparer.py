"""Prepare documents for the store: cut, embed, number and locate their chunks, and say what each of them states."""

import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from protocol.errors import EmptyDocument
from protocol.graph import Triplet
from retriever.embedding.base import Embedder, Vector
from retriever.embedding.vector_checks import checked_vectors
from retriever.ingestion.chunker import Chunker
from retriever.ingestion.line_counter import LineCounter
from retriever.ingestion.triplet_placement import triplets_by_chunk
from retriever.store.chunks import Ids
from retriever.store.prepared_chunk import PreparedChunk


class SourceText(NamedTuple):
    """The parts of a document that are cut and embedded, and the triplets that its chunks state."""

    text: str
    title: str | None
    triplets: Sequence[Triplet] = ()


class ChunkPreparer:
    """Cuts and embeds documents, and is the only place that assigns chunk ids. Thread-safe.

    Ids only increase, also across transactions that are rolled back. So an id in an index never refers to another
    chunk.
    """

    def __init__(self, chunker: Chunker, embedder: Embedder) -> None:
        self._chunker = chunker
        self._embedder = embedder
        self._next_id = 1
        self._id_lock = threading.Lock()

    @property
    def fingerprint(self) -> str:
        """Identifies embedder and chunker. One index holds only chunks with equal fingerprints."""
        return f"{self._embedder.fingerprint} {self._chunker.fingerprint}"

    def start_ids_after(self, last_id: int) -> None:
        """Assign only ids above ``last_id``."""
        with self._id_lock:
            self._next_id = max(self._next_id, last_id + 1)

    def prepare(self, sources: Sequence[SourceText]) -> list[list[PreparedChunk]]:
        """Return the chunks of each document, all embedded together.

        Raises EmptyDocument, what the embedder raises, and InvalidRequest for vectors that no index can hold.
        """
        cut = [self._chunker.chunks(source.text, source.title) for source in sources]
        if not all(cut):
            # The text has characters besides white space, but no token.
            raise EmptyDocument("the document has no text")
        vectors = self._embedder.embed_documents([chunk.text for chunks in cut for chunk in chunks])
        checked_vectors(vectors, self._embedder.dimension)
        with self._id_lock:
            first = self._next_id
            self._next_id += len(vectors)
        prepared: list[list[PreparedChunk]] = []
        at = 0
        for source, chunks in zip(sources, cut, strict=True):
            lines = LineCounter(source.text)
            stated = triplets_by_chunk([chunk.text for chunk in chunks], source.triplets)
            prepared.append(
                [
                    PreparedChunk(first + at + n, chunk, vectors[at + n], lines.of(chunk.start, chunk.end), stated[n])
                    for n, chunk in enumerate(chunks)
                ]
            )
            at += len(chunks)
        return prepared


def ids_of(chunks: Sequence[PreparedChunk]) -> Ids:
    """Return the ids of chunks, [n]."""
    return np.array([chunk.id for chunk in chunks], np.int64)


def vectors_of(chunks: Sequence[PreparedChunk]) -> Vector:
    """Return the embeddings of chunks, [n, dimension]; n must not be 0."""
    return np.stack([chunk.embedding for chunk in chunks])
