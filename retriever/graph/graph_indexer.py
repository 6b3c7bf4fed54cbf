"""The graph indexer: reads the chunks that the graph does not have yet."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from retriever.embedding.base import Embedder, Vector
from retriever.graph.extractors.base import Statement
from retriever.graph.graph_catalog import GraphCatalog
from retriever.graph.group_reader import Group, GroupReader
from retriever.graph.names import LONGEST_NAME, name_key
from retriever.store.chunks import Chunks
from retriever.store.database import Database, Transaction
from retriever.store.facts import Facts, KeyedRelation, KeyedStatement, UnreadChunk

_Stated = tuple[UnreadChunk, list[KeyedStatement] | None]
"""A chunk and its statements; None if it cannot be read."""


class GraphIndexer:
    """Embeds the statements and names of chunks, and stores them, a group in one commit.

    Only the store says what is left to read. So a crash loses the work on two groups at most, and a chunk that is
    deleted while it is read leaves nothing behind. The graph in memory is refreshed when all chunks have been read.

    ``fingerprint`` is that of the extractor.
    """

    def __init__(
        self,
        database: Database,
        chunks: Chunks,
        facts: Facts,
        groups: GroupReader,
        fingerprint: str,
        embedder: Embedder,
        catalog: GraphCatalog,
    ) -> None:
        self._database = database
        self._chunks = chunks
        self._facts = facts
        self._groups = groups
        self._fingerprint = fingerprint
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
        by_collection: dict[int, list[_Stated]] = defaultdict(list)
        names: dict[int, dict[str, str]] = defaultdict(dict)
        for chunk, statements in zip(group.chunks, self._embedded(group), strict=True):
            by_collection[chunk.collection].append((chunk, statements))
        for chunk, found in zip(group.chunks, group.statements, strict=True):
            names[chunk.collection] = _names(found or ()) | names[chunk.collection]
        for collection, stated in by_collection.items():
            self._store(collection, stated, names[collection])
            self.changed(collection)
        self._groups.stored()
        return True

    def close(self) -> None:
        """End reading. The rest is read after the next start."""
        self._groups.close()

    def _embedded(self, group: Group) -> list[list[KeyedStatement] | None]:
        stated = [
            None
            if statements is None
            else [(statement, chunk.text[statement.start : statement.end]) for statement in statements]
            for chunk, statements in zip(group.chunks, group.statements, strict=True)
        ]
        # Chunks of a document overlap.
        texts = list(dict.fromkeys(text for statements in stated for _, text in statements or ()))
        vectors = dict(zip(texts, self._embedder.embed_documents(texts) if texts else (), strict=True))
        return [
            None if statements is None else [_keyed(statement, vectors[text]) for statement, text in statements]
            for statements in stated
        ]

    def _store(self, collection: int, stated: Sequence[_Stated], names: Mapping[str, str]) -> None:
        embeddings: dict[str, Vector] = {}
        while True:
            with self._database.read() as transaction:
                known = self._facts.known(transaction, collection, names)
            new = [key for key in names if key not in known and key not in embeddings]
            if new:
                vectors = self._embedder.embed_documents([names[key] for key in new])
                embeddings |= dict(zip(new, vectors, strict=True))
            with self._database.write() as transaction:
                known = self._facts.known(transaction, collection, names)
                missing = names.keys() - known.keys()
                if missing <= embeddings.keys():
                    self._put(transaction, collection, stated, {key: names[key] for key in missing}, embeddings)
                    return
            # A document was deleted meanwhile, and with it entities that were known.

    def _put(
        self,
        transaction: Transaction,
        collection: int,
        stated: Sequence[_Stated],
        missing: Mapping[str, str],
        embeddings: Mapping[str, Vector],
    ) -> None:
        live = self._chunks.live(transaction, collection, [chunk.id for chunk, _ in stated])
        kept = [(chunk, statements) for chunk, statements in stated if chunk.id in live]
        used = {key for _, statements in kept for statement in statements or () for key in statement.keys}
        self._facts.add_entities(
            transaction, collection, {key: name for key, name in missing.items() if key in used}, embeddings
        )
        entities = self._facts.known(transaction, collection, used)
        for chunk, statements in kept:
            self._facts.put(transaction, chunk, self._fingerprint, statements, entities)


def _names(statements: Iterable[Statement]) -> dict[str, str]:
    """The names of statements by key, as they are first spelled."""
    names: dict[str, str] = {}
    for statement in statements:
        for name in statement.names:
            if key := name_key(name):
                names.setdefault(key, name)
    return names


def _keyed(statement: Statement, embedding: Vector) -> KeyedStatement:
    keys = dict.fromkeys(key for name in statement.names if (key := name_key(name)))
    relations = dict.fromkeys(
        KeyedRelation(name_key(head), relation, name_key(tail)) for head, relation, tail in statement.triplets
    )
    # A name that is too long, or has no letter, is no entity. So nothing is related to it. Nor is a clause a relation.
    kept = tuple(
        relation
        for relation in relations
        if relation.head in keys and relation.tail in keys and 0 < len(relation.relation) <= LONGEST_NAME
    )
    return KeyedStatement(statement.start, statement.end, tuple(keys), kept, embedding)
