"""The graph indexer: reads the chunks that the graph does not have yet, in groups."""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import takewhile
from typing import NamedTuple

import structlog

from protocol.errors import RagtreeError
from protocol.graph import Triplet
from protocol.repeating import MOST_ATTEMPTS
from retriever.embedding.base import Embedder, Vector
from retriever.graph.extractors.base import Extractor, ExtractorEnded, Statement
from retriever.graph.graph_catalog import GraphCatalog
from retriever.graph.names import LONGEST_NAME, name_key
from retriever.store.attempts import Attempts
from retriever.store.database import Database, Transaction
from retriever.store.facts import Facts, KeyedStatement, UnreadChunk
from retriever.store.store import Store

_log = structlog.get_logger(__name__)
_CHUNKS_AT_ONCE = 64

_Stated = tuple[UnreadChunk, list[KeyedStatement] | None]
"""A chunk and its statements; None if it cannot be read."""


class Group(NamedTuple):
    """Unread chunks, and the statements of each; None for one that cannot be read.

    ``suspect`` is whether it is a single chunk that a process did not survive.
    """

    chunks: list[UnreadChunk]
    statements: Sequence[Sequence[Statement] | None]
    suspect: bool = False


class GroupReader:
    """Reads unread chunks, group by group, and the following group while one is embedded and stored.

    Chunk ids only grow. So each chunk is looked at once, and after a restart once more. An attempt at each chunk is
    recorded before it begins. A chunk that a process did not survive is read alone, with no other beside it, and cannot
    be read after ``MOST_ATTEMPTS`` of them. Who stores what was read of a chunk forgets its ``attempts``.
    """

    def __init__(self, database: Database, facts: Facts, extractor: Extractor) -> None:
        self._database = database
        self._facts = facts
        self._extractor = extractor
        self.attempts = Attempts("chunk")
        self._thread = ThreadPoolExecutor(1, "retriever-extract")
        self._after = 0
        self._current: Group | None = None
        self._ahead: Future[Group | None] | None = None

    def next(self) -> Group | None:
        """Return the next group, the same until it is ``stored``; None at the end. Raises as ``index_next``."""
        if self._current is None:
            self._current = self._following()
        return self._current

    def stored(self) -> None:
        """Go on after the current group."""
        self._current = None

    def close(self) -> None:
        """End the extractor, and wait for the group that it reads."""
        self._extractor.close()
        self._thread.shutdown(cancel_futures=True)
        # Without it, an attempt too many counts. The rest of the retriever still closes.
        with suppress(RagtreeError, sqlite3.Error), self._database.write() as transaction:
            self.attempts.take_back(transaction)

    def _following(self) -> Group | None:
        ahead, self._ahead = self._ahead, None
        group = None if ahead is None else ahead.result()
        # The group that was read ahead may have ended before the latest chunks, or before a suspect.
        group = group or self._thread.submit(self._read, self._after).result()
        if group is not None:
            self._after = group.chunks[-1].id
            if not group.suspect:
                self._ahead = self._thread.submit(self._read, self._after, ahead=True)
        return group

    def _read(self, after: int, *, ahead: bool = False) -> Group | None:
        with self._database.read() as transaction:
            chunks = self._facts.unread(transaction, after, _CHUNKS_AT_ONCE)
            lost = self.attempts.lost(transaction)
        if not chunks or (ahead and chunks[0].id in lost):
            return None
        suspect = chunks[0].id in lost
        chunks = chunks[:1] if suspect else list(takewhile(lambda chunk: chunk.id not in lost, chunks))
        if lost.get(chunks[0].id, 0) >= MOST_ATTEMPTS:
            _log.error("chunk not read for the graph, which has ended its reader", chunk=chunks[0].id)
            return Group(chunks, [None], suspect)
        ids = [chunk.id for chunk in chunks]
        with self._database.write() as transaction:
            self.attempts.begin(transaction, ids)
        try:
            return Group(chunks, self._extractor.extract([chunk.source for chunk in chunks]), suspect)
        except ExtractorEnded:
            with self._database.write() as transaction:
                self.attempts.lose(transaction, ids)
            raise


class GraphIndexer:
    """Embeds the statements and names of chunks, and stores them, a group in one commit.

    Only the store says what is left to read. So a crash loses the work on two groups at most, and a chunk that is
    deleted while it is read leaves nothing behind. The graph in memory is refreshed when all chunks have been read.
    """

    def __init__(
        self, store: Store, facts: Facts, groups: GroupReader, embedder: Embedder, catalog: GraphCatalog
    ) -> None:
        self._store = store
        self._facts = facts
        self._groups = groups
        self._embedder = embedder
        self._catalog = catalog
        self._changed: set[int] = set()

    def changed(self, collection: int) -> None:
        """Have a collection's graph read into memory again. Thread-safe."""
        self._changed.add(collection)

    def index_next(self) -> bool:
        """Store the next group of chunks; return False if none is left.

        Raises Unavailable, ConfigError, StorageFull, sqlite3.Error.
        """
        group = self._groups.next()
        if group is None:
            while self._changed:
                self._catalog.refresh(self._changed.pop())
            return False
        names: dict[int, dict[str, str]] = defaultdict(dict)
        for chunk, found in zip(group.chunks, group.statements, strict=True):
            names[chunk.collection] = _names(found or ()) | names[chunk.collection]
        # Statements and names at once: cores wait for each other at the end of each call.
        vectors = self._vectors([*_texts(group), *self._unknown(names)])
        stated: dict[int, list[_Stated]] = defaultdict(list)
        for chunk, found in zip(group.chunks, group.statements, strict=True):
            keyed = [_keyed(statement, vectors[_text(chunk, statement)]) for statement in found or ()]
            stated[chunk.collection].append((chunk, None if found is None else keyed))
        for collection, of_collection in stated.items():
            self._put_all(collection, of_collection, names[collection], vectors)
            self.changed(collection)
        self._groups.stored()
        return True

    def close(self) -> None:
        """End reading. The rest is read after the next start."""
        self._groups.close()

    def _vectors(self, texts: Iterable[str]) -> dict[str, Vector]:
        # Chunks of a document overlap.
        different = list(dict.fromkeys(texts))
        return dict(zip(different, self._embedder.embed_documents(different) if different else (), strict=True))

    def _unknown(self, names: Mapping[int, Mapping[str, str]]) -> Iterator[str]:
        """The names of entities that are not in the graphs of their collections."""
        for collection, by_key in names.items():
            with self._store.database.read() as transaction:
                known = self._facts.known(transaction, collection, by_key)
            yield from (name for key, name in by_key.items() if key not in known)

    def _put_all(
        self, collection: int, stated: Sequence[_Stated], names: Mapping[str, str], vectors: dict[str, Vector]
    ) -> None:
        while True:
            with self._store.database.write() as transaction:
                known = self._facts.known(transaction, collection, names)
                missing = {key: name for key, name in names.items() if key not in known}
                if vectors.keys() >= set(missing.values()):
                    self._put(transaction, collection, stated, missing, vectors)
                    return
            # A document was deleted meanwhile, and with it entities that were known.
            vectors |= self._vectors(missing.values() - vectors.keys())

    def _put(
        self,
        transaction: Transaction,
        collection: int,
        stated: Sequence[_Stated],
        missing: Mapping[str, str],
        vectors: Mapping[str, Vector],
    ) -> None:
        live = self._store.chunks.live(transaction, collection, [chunk.id for chunk, _ in stated])
        self._groups.attempts.forget(transaction, [chunk.id for chunk, _ in stated])
        kept = [(chunk, statements) for chunk, statements in stated if chunk.id in live]
        used = {key for _, statements in kept for statement in statements or () for key in statement.keys}
        new = {key: name for key, name in missing.items() if key in used}
        self._facts.add_entities(transaction, collection, new, {key: vectors[name] for key, name in new.items()})
        entities = self._facts.known(transaction, collection, used)
        for chunk, statements in kept:
            self._facts.put(transaction, chunk, statements, entities)


def _names(statements: Iterable[Statement]) -> dict[str, str]:
    """The names of statements by key, as they are first spelled."""
    names: dict[str, str] = {}
    for statement in statements:
        for name in statement.names:
            if key := name_key(name):
                names.setdefault(key, name)
    return names


def _texts(group: Group) -> Iterator[str]:
    for chunk, statements in zip(group.chunks, group.statements, strict=True):
        yield from (_text(chunk, statement) for statement in statements or ())


def _text(chunk: UnreadChunk, statement: Statement) -> str:
    return chunk.source.text[statement.start : statement.end]


def _keyed(statement: Statement, embedding: Vector) -> KeyedStatement:
    keys = dict.fromkeys(key for name in statement.names if (key := name_key(name)))
    relations = dict.fromkeys(
        Triplet(name_key(head), relation, name_key(tail)) for head, relation, tail in statement.triplets
    )
    # A name that is too long, or has no letter, is no entity. So nothing is related to it. Nor is a clause a relation.
    kept = tuple(
        relation
        for relation in relations
        if relation.head in keys and relation.tail in keys and 0 < len(relation.relation) <= LONGEST_NAME
    )
    return KeyedStatement(statement.start, statement.end, tuple(keys), kept, embedding)
