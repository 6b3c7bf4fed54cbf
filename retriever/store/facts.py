"""The graphs of collections: statements of chunks, the entities they mention, and the relations they state."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from protocol.graph import GraphSize, Triplet
from retriever.embedding.base import Vector
from retriever.store.chunks import Ids
from retriever.store.database import Transaction
from retriever.store.incoming import SourceText, read_triplets

Halves = npt.NDArray[np.float16]
"""Vectors as they are stored, [n, dimension]."""

_EDGES = "SELECT r.head, r.relation, r.tail, s.chunk FROM relations r JOIN statements s ON s.id = r.statement "


class UnreadChunk(NamedTuple):
    """A chunk that has not been read for the graph."""

    id: int
    collection: int
    source: SourceText


class KeyedStatement(NamedTuple):
    """A statement on its way into the store: characters ``first`` to ``last`` of its chunk's text.

    ``keys`` are those of its entities, ``relations`` are between these, and ``embedding`` has the shape [dimension].
    """

    first: int
    last: int
    keys: tuple[str, ...]
    relations: tuple[Triplet, ...]
    embedding: Vector


class StoredRelation(NamedTuple):
    """A relation with the names of its entities, and the id of the chunk that states it."""

    head: str
    relation: str
    tail: str
    chunk: int


class Edge(NamedTuple):
    """A relation between the entities with these ids, and the id of the chunk that states it."""

    head: int
    relation: str
    tail: int
    chunk: int

    @property
    def stated(self) -> tuple[int, str, int]:
        """What is stated, wherever it is stated."""
        return self.head, self.relation, self.tail


class GraphArrays(NamedTuple):
    """All of a collection's graph; ids ascend.

    ``entities`` [e] and ``statements`` [s] are ids, and ``chunks`` [s] those of the statements' chunks. Each has its
    embeddings. ``mentions`` [m, 2] are (statement, entity), ``relations`` [r, 4] are (id, statement, head, tail).
    """

    entities: Ids
    entity_embeddings: Halves
    statements: Ids
    chunks: Ids
    statement_embeddings: Halves
    mentions: Ids
    relations: Ids


class Facts:
    """Reads and writes the graphs of all collections. Each call runs in the given transaction.

    A deleted chunk takes along its statements, their mentions and relations, and entities that are mentioned nowhere
    else. The schema sees to it, in the transaction that deletes the chunk. Chunks read under another ``fingerprint``
    than that of today's extractor count as not read.
    """

    def __init__(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint

    def unread(self, transaction: Transaction, after: int, limit: int) -> list[UnreadChunk]:
        """Return up to ``limit`` chunks with ids above ``after`` that have not been read."""
        rows = transaction.execute(
            """SELECT c.id, c.collection, c.text, d.title, c.triplets
               FROM chunks c JOIN documents d ON d.id = c.document LEFT JOIN read_chunks r ON r.chunk = c.id
               WHERE c.id > ? AND r.fingerprint IS NOT ? ORDER BY c.id LIMIT ?""",
            (after, self._fingerprint, limit),
        )
        return [
            UnreadChunk(id_, collection, SourceText(text, title, read_triplets(triplets)))
            for id_, collection, text, title, triplets in rows
        ]

    def unread_count(self, transaction: Transaction, collection: int) -> int:
        """Return how many chunks of a collection have not been read."""
        row = transaction.execute(
            """SELECT count(*) FROM chunks c LEFT JOIN read_chunks r ON r.chunk = c.id
               WHERE c.collection = ? AND r.fingerprint IS NOT ?""",
            (collection, self._fingerprint),
        ).fetchone()
        return int(row[0])

    def unreadable_count(self, transaction: Transaction, collection: int) -> int:
        """Return how many chunks of a collection were tried, but could not be read."""
        row = transaction.execute(
            """SELECT count(*) FROM read_chunks r JOIN chunks c ON c.id = r.chunk
               WHERE r.unreadable AND r.fingerprint = ? AND c.collection = ?""",
            (self._fingerprint, collection),
        ).fetchone()
        return int(row[0])

    def all_counts(self, transaction: Transaction) -> tuple[int, int]:
        """Return how many chunks of all collections have not been read, and how many could not be."""
        # A chunk takes its mark along when it goes, so all marks are of live chunks.
        unread, unreadable = transaction.execute(
            """SELECT (SELECT count(*) FROM chunks) - (SELECT count(*) FROM read_chunks WHERE fingerprint = :read_by),
                      (SELECT count(*) FROM read_chunks WHERE unreadable AND fingerprint = :read_by)""",
            {"read_by": self._fingerprint},
        ).fetchone()
        return unread, unreadable

    def collections(self, transaction: Transaction) -> list[int]:
        """Return the keys of the collections that have a graph."""
        return [row["collection"] for row in transaction.execute("SELECT DISTINCT collection FROM statements")]

    def known(self, transaction: Transaction, collection: int, keys: Iterable[str]) -> dict[str, int]:
        """Return the ids of the collection's entities that have one of the ``keys``, by key."""
        rows = transaction.execute(
            """SELECT e.key, e.id FROM json_each(?) AS wanted
               CROSS JOIN entities e ON e.collection = ? AND e.key = wanted.value""",
            (json.dumps(sorted(set(keys))), collection),
        )
        return {row["key"]: row["id"] for row in rows}

    def add_entities(
        self, transaction: Transaction, collection: int, names: Mapping[str, str], embeddings: Mapping[str, Vector]
    ) -> None:
        """Store entities that are not known yet: their ``names`` and ``embeddings``, [dimension] each, by key."""
        transaction.executemany(
            "INSERT INTO entities (collection, key, name, embedding) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            [(collection, key, name, _blob(embeddings[key])) for key, name in names.items()],
        )

    def put(
        self,
        transaction: Transaction,
        chunk: UnreadChunk,
        statements: Sequence[KeyedStatement] | None,
        entities: Mapping[str, int],
    ) -> None:
        """Replace what is stored of a chunk: by nothing if it could not be read, which ``statements`` of None say.

        ``entities`` has the ids of all keys.
        """
        # An entity lives as long as a mention of it. So the new mentions come before the old ones go.
        old = transaction.execute("SELECT id FROM statements WHERE chunk = ?", (chunk.id,)).fetchall()
        for statement in statements or ():
            (number,) = transaction.execute(
                """INSERT INTO statements (chunk, collection, first, last, embedding) VALUES (?, ?, ?, ?, ?)
                   RETURNING id""",
                (chunk.id, chunk.collection, statement.first, statement.last, _blob(statement.embedding)),
            ).fetchone()
            transaction.executemany(
                "INSERT INTO mentions (statement, entity) VALUES (?, ?)",
                [(number, entities[key]) for key in statement.keys],
            )
            transaction.executemany(
                "INSERT INTO relations (statement, head, relation, tail) VALUES (?, ?, ?, ?)",
                [(number, entities[head], relation, entities[tail]) for head, relation, tail in statement.relations],
            )
        transaction.executemany("DELETE FROM statements WHERE id = ?", [(row["id"],) for row in old])
        transaction.execute(
            "INSERT OR REPLACE INTO read_chunks (chunk, fingerprint, unreadable) VALUES (?, ?, ?)",
            (chunk.id, self._fingerprint, statements is None),
        )

    def arrays(self, transaction: Transaction, collection: int, dimension: int) -> GraphArrays:
        """Return a collection's graph. Vectors of another dimension are left out."""
        size = 2 * dimension
        entities = transaction.execute(
            "SELECT id, embedding FROM entities WHERE collection = ? AND length(embedding) = ? ORDER BY id",
            (collection, size),
        ).fetchall()
        statements = transaction.execute(
            "SELECT id, chunk, embedding FROM statements WHERE collection = ? AND length(embedding) = ? ORDER BY id",
            (collection, size),
        ).fetchall()
        mentions = transaction.execute(
            """SELECT m.statement, m.entity FROM statements s JOIN mentions m ON m.statement = s.id
               WHERE s.collection = ?""",
            (collection,),
        ).fetchall()
        relations = transaction.execute(
            """SELECT r.id, r.statement, r.head, r.tail FROM statements s JOIN relations r ON r.statement = s.id
               WHERE s.collection = ? ORDER BY r.id""",
            (collection,),
        ).fetchall()
        return GraphArrays(
            np.array([row["id"] for row in entities], np.int64),
            _vectors([row["embedding"] for row in entities], dimension),
            np.array([row["id"] for row in statements], np.int64),
            np.array([row["chunk"] for row in statements], np.int64),
            _vectors([row["embedding"] for row in statements], dimension),
            np.array([tuple(row) for row in mentions], np.int64).reshape(len(mentions), 2),
            np.array([tuple(row) for row in relations], np.int64).reshape(len(relations), 4),
        )

    def names(self, transaction: Transaction, ids: Sequence[int]) -> dict[int, str]:
        """Return the names of the entities that still exist, by id."""
        rows = transaction.execute(
            "SELECT e.id, e.name FROM json_each(?) AS wanted CROSS JOIN entities e ON e.id = wanted.value",
            (json.dumps(list(ids)),),
        )
        return {row["id"]: row["name"] for row in rows}

    def relations(self, transaction: Transaction, ids: Sequence[int]) -> dict[int, StoredRelation]:
        """Return the relations that still exist, by id."""
        rows = transaction.execute(
            """SELECT r.id, h.name, r.relation, t.name, s.chunk
               FROM json_each(?) AS wanted CROSS JOIN relations r ON r.id = wanted.value
                    JOIN statements s ON s.id = r.statement JOIN entities h ON h.id = r.head
                    JOIN entities t ON t.id = r.tail""",
            (json.dumps(list(ids)),),
        )
        return {row[0]: StoredRelation(*row[1:]) for row in rows.fetchall()}

    def size(self, transaction: Transaction, collection: int) -> GraphSize:
        """Return how much a collection's graph holds."""
        row = transaction.execute(
            """SELECT (SELECT count(*) FROM entities WHERE collection = :key),
                      (SELECT count(*) FROM statements WHERE collection = :key),
                      (SELECT count(*) FROM statements s JOIN relations r ON r.statement = s.id
                       WHERE s.collection = :key)""",
            {"key": collection},
        ).fetchone()
        return GraphSize(*row)

    def most_mentioned(self, transaction: Transaction, collection: int, limit: int) -> list[int]:
        """Return the ids of the entities that most statements mention, the most mentioned first."""
        rows = transaction.execute(
            """SELECT e.id FROM entities e WHERE e.collection = ?
               ORDER BY (SELECT count(*) FROM mentions WHERE entity = e.id) DESC, e.id LIMIT ?""",
            (collection, limit),
        )
        return [row["id"] for row in rows]

    def mentions(self, transaction: Transaction, ids: Sequence[int]) -> dict[int, int]:
        """Return how many statements mention each of these entities, by id."""
        rows = transaction.execute(
            """SELECT wanted.value AS id, (SELECT count(*) FROM mentions WHERE entity = wanted.value) AS mentions
               FROM json_each(?) AS wanted""",
            (json.dumps(list(ids)),),
        )
        return {row["id"]: row["mentions"] for row in rows}

    def edges(self, transaction: Transaction, entity: int, limit: int) -> list[Edge]:
        """Return up to ``limit`` relations of an entity: first those that it is the head of, each kind oldest first."""
        rows = transaction.execute(_EDGES + "WHERE r.head = ? ORDER BY r.id LIMIT ?", (entity, limit)).fetchall()
        # A relation of an entity to itself is among the first ones.
        rows += transaction.execute(
            _EDGES + "WHERE r.tail = ? AND r.head <> r.tail ORDER BY r.id LIMIT ?", (entity, limit - len(rows))
        ).fetchall()
        return [Edge(*row) for row in rows]


def _blob(vector: Vector) -> bytes:
    return vector.astype(np.float16).tobytes()


def _vectors(blobs: Sequence[bytes], dimension: int) -> Halves:
    return np.frombuffer(b"".join(blobs), np.float16).reshape(len(blobs), dimension)
