"""The graphs of collections as a person looks at them: their size, and who is related to whom."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from protocol.graph import GraphSize
from retriever.store.database import Transaction

_EDGES = "SELECT r.head, r.relation, r.tail, s.chunk FROM relations r JOIN statements s ON s.id = r.statement "


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


class GraphOutline:
    """Reads graphs without their vectors. Each call runs in the given transaction."""

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

    def unread(self, transaction: Transaction, fingerprint: str) -> int:
        """Return how many chunks of all collections were not read under this fingerprint."""
        # A chunk takes its mark along when it goes, so all marks are of live chunks.
        row = transaction.execute(
            "SELECT (SELECT count(*) FROM chunks) - (SELECT count(*) FROM read_chunks WHERE fingerprint = ?)",
            (fingerprint,),
        ).fetchone()
        return int(row[0])

    def unreadable(self, transaction: Transaction, fingerprint: str) -> int:
        """Return how many chunks of all collections were tried under this fingerprint, but could not be read."""
        row = transaction.execute(
            "SELECT count(*) FROM read_chunks WHERE unreadable AND fingerprint = ?", (fingerprint,)
        ).fetchone()
        return int(row[0])
