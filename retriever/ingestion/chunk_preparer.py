"""Prepare documents for the store: cut, embed, number and locate their chunks, and say what each states."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from protocol.errors import EmptyDocument
from protocol.graph import Triplet
from protocol.retrieval import Lines
from retriever.embedding.base import Embedder, Vector, checked_vectors
from retriever.graph.names import NameFinder, name_key
from retriever.ingestion.chunker import Chunker
from retriever.store.incoming import ChunkText, PreparedChunk, SourceText

MOST_CHUNKS = 16
"""Of one triplet. Otherwise, ten thousand triplets of a long document about one thing would be stated by all of it."""

_CHUNKS_OF_A_PART = 128
"""About as many as a group of short documents has."""


def placed_triplets(chunks: Iterable[str], triplets: Sequence[Triplet]) -> Mapping[int, tuple[Triplet, ...]]:
    """Return the triplets of those chunks of a document that state any, by the chunk's position, in their order.

    A triplet is stated by the first ``MOST_CHUNKS`` chunks that name both of its ends. If there is none, it is stated
    by the first chunk that names one, or else by the first chunk. Chunks are read once and not kept.
    """
    keys = [(name_key(triplet.head), name_key(triplet.tail)) for triplet in triplets]
    finder = NameFinder(key for ends in keys for key in ends)
    of_head: dict[str, set[int]] = defaultdict(set)
    for number, (head, _) in enumerate(keys):
        of_head[head].add(number)
    places: list[list[int]] = [[] for _ in triplets]
    first: dict[str, int] = {}
    for position, text in enumerate(chunks if triplets else ()):
        found = finder.found_in(text)
        for key in found:
            first.setdefault(key, position)
            for number in tuple(of_head.get(key, ())):
                if keys[number][1] in found:
                    places[number].append(position)
                    if len(places[number]) == MOST_CHUNKS:
                        of_head[key].discard(number)
    stated: dict[int, list[Triplet]] = defaultdict(list)
    for triplet, ends, positions in zip(triplets, keys, places, strict=True):
        for position in positions or [min((first[key] for key in ends if key in first), default=0)]:
            stated[position].append(triplet)
    return {position: tuple(found) for position, found in stated.items()}


class LineCounter:
    """Counts the lines of one text, which a line feed ends. It counts on from the range before, so these ascend."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1

    def of(self, start: int, end: int) -> Lines:
        """Return the lines of the characters from ``start`` up to ``end``, above it. Starts must not descend."""
        self._line += self._text.count("\n", self._at, start)
        self._at = start
        return Lines(self._line, self._line + self._text.count("\n", start, end - 1))


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
        first, vectors = self._embedded([chunk for chunks in cut for chunk in chunks])
        prepared: list[list[PreparedChunk]] = []
        for source, chunks in zip(sources, cut, strict=True):
            stated = placed_triplets((chunk.text for chunk in chunks), source.triplets)
            prepared.append(_numbered(chunks, first, vectors, LineCounter(source.text), stated))
            first, vectors = first + len(chunks), vectors[len(chunks) :]
        return prepared

    def parts(self, source: SourceText) -> "DocumentParts":
        """Return a long document, of which each part of its chunks is cut and embedded when it is asked for."""
        return DocumentParts(self._chunker, self._embedded, source)

    def _embedded(self, chunks: Sequence[ChunkText]) -> tuple[int, Vector]:
        """Embed chunks. Return the first chunk's id, which the others follow, and the vectors."""
        vectors = self._embedder.embed_documents([chunk.text for chunk in chunks])
        checked_vectors(vectors, self._embedder.dimension)
        with self._id_lock:
            first = self._next_id
            self._next_id += len(vectors)
        return first, vectors


class DocumentParts:
    """The chunks of one document, part by part, so that memory does not grow with its length."""

    def __init__(
        self, chunker: Chunker, embedded: Callable[[Sequence[ChunkText]], tuple[int, Vector]], source: SourceText
    ) -> None:
        self._chunker = chunker
        self._embedded = embedded
        self._source = source
        self._chunks = chunker.cut(source.text, source.title)
        self._lines = LineCounter(source.text)
        self._stated: Mapping[int, tuple[Triplet, ...]] | None = None
        self._cut: list[ChunkText] = []
        self._position = 0

    def next(self) -> list[PreparedChunk]:
        """Return the next part, the same one after an error; empty at the end. Raises as ``prepare``."""
        if self._stated is None:
            # Where a triplet is stated depends on all chunks. Cutting twice costs little beside embedding once.
            texts = (chunk.text for chunk in self._chunker.cut(self._source.text, self._source.title))
            self._stated = placed_triplets(texts, self._source.triplets)
        self._cut = self._cut or list(islice(self._chunks, _CHUNKS_OF_A_PART))
        if not self._cut:
            if not self._position:
                raise EmptyDocument("the document has no text")
            return []
        first, vectors = self._embedded(self._cut)
        prepared = _numbered(self._cut, first, vectors, self._lines, self._stated, self._position)
        self._position += len(prepared)
        self._cut = []
        return prepared


def _numbered(
    chunks: Sequence[ChunkText],
    first: int,
    vectors: Vector,
    lines: LineCounter,
    stated: Mapping[int, tuple[Triplet, ...]],
    position: int = 0,
) -> list[PreparedChunk]:
    """Chunks with ids from ``first`` on, and the triplets that are ``stated`` by position, which the first one has."""
    return [
        PreparedChunk(first + n, chunk, vectors[n], lines.of(chunk.start, chunk.end), stated.get(position + n, ()))
        for n, chunk in enumerate(chunks)
    ]
