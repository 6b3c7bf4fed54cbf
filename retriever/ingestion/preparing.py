"""Documents made ready for the store: cut, embedded, and their chunks numbered."""

import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from protocol.errors import EmptyDocument
from retriever.embedding.base import Embedder, Vector
from retriever.embedding.checks import checked_vectors
from retriever.ingestion.chunker import Chunker
from retriever.store.chunks import Ids
from retriever.store.documents import PreparedChunk


class SourceText(NamedTuple):
    """What of a document is cut and embedded."""

    text: str
    title: str | None


class Preparer:
    """Chunker and embedder as one step, and the one place that gives out chunk ids.

    Ids only ever rise, also over transactions that are rolled back, so that an index never holds a vector under an id
    that comes to mean another chunk.
    """

    def __init__(self, chunker: Chunker, embedder: Embedder) -> None:
        self._chunker = chunker
        self._embedder = embedder
        self._next_id = 1
        self._id_lock = threading.Lock()

    @property
    def fingerprint(self) -> str:
        """What must be equal for chunks and vectors prepared at different times to stand in one index."""
        return f"{self._embedder.fingerprint} {self._chunker.fingerprint}"

    def number_from(self, last_id: int) -> None:
        """Give out ids above ``last_id`` only."""
        with self._id_lock:
            self._next_id = max(self._next_id, last_id + 1)

    def prepare(self, sources: Sequence[SourceText]) -> list[list[PreparedChunk]]:
        """The chunks of each document, embedded together.

        Raises EmptyDocument, what the embedder raises, and InvalidRequest for vectors that no index could hold.
        """
        cut = [self._chunker.chunks(source.text, source.title) for source in sources]
        if not all(cut):
            # Characters that are no white space, and yet make no token.
            raise EmptyDocument("the document has no text")
        vectors = self._embedder.embed_documents([chunk.text for chunks in cut for chunk in chunks])
        checked_vectors(vectors, self._embedder.dimension)
        with self._id_lock:
            first = self._next_id
            self._next_id += len(vectors)
        prepared: list[list[PreparedChunk]] = []
        at = 0
        for chunks in cut:
            prepared.append([PreparedChunk(first + at + n, chunk, vectors[at + n]) for n, chunk in enumerate(chunks)])
            at += len(chunks)
        return prepared


def ids_of(chunks: Sequence[PreparedChunk]) -> Ids:
    """The ids of chunks, [n]."""
    return np.array([chunk.id for chunk in chunks], np.int64)


def vectors_of(chunks: Sequence[PreparedChunk]) -> Vector:
    """The vectors of chunks, [n, dimension]; n must not be 0."""
    return np.stack([chunk.embedding for chunk in chunks])
