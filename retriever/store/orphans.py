"""Orphans: content hashes of removed chunks, recorded until their KV is deleted."""

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence

from protocol.documents import Orphan
from retriever.store.database import Transaction


class Orphans:
    """The content hashes that no chunk of their tenant has any more. Each call runs in the given transaction.

    A hash is recorded in the commit that removes its last chunk. It is cleared if a chunk with this content returns.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock

    def add(self, transaction: Transaction, document: int, removed: Iterable[str]) -> None:
        """Record those of a document's removed contents that no chunk has now. The document's row must still exist."""
        transaction.execute(
            """INSERT OR IGNORE INTO orphans (tenant, content_hash, collection, document_id, since)
               SELECT DISTINCT k.tenant, gone.value, k.name, d.document_id, ?
               FROM documents d JOIN collections k ON k.id = d.collection, json_each(?) AS gone
               WHERE d.id = ? AND NOT EXISTS (
                   SELECT 1 FROM chunks c JOIN collections other ON other.id = c.collection
                   WHERE c.content_hash = gone.value AND other.tenant = k.tenant)""",
            (self._clock(), json.dumps(list(removed)), document),
        )

    def clear(self, transaction: Transaction, collection: int, contents: Iterable[str]) -> None:
        """Remove contents from the list that a chunk has again."""
        transaction.execute(
            """DELETE FROM orphans WHERE tenant = (SELECT tenant FROM collections WHERE id = ?)
               AND content_hash IN (SELECT value FROM json_each(?))""",
            (collection, json.dumps(list(contents))),
        )

    def of_document(self, transaction: Transaction, tenant: str, collection: str, document_id: str) -> list[Orphan]:
        """Return the orphans of a document with this name, deleted or replaced."""
        where = "WHERE tenant = ? AND collection = ? AND document_id = ? ORDER BY id"
        return _orphans(transaction.execute(_ORPHANS + where, (tenant, collection, document_id)))

    def older_than(self, transaction: Transaction, seconds: float, limit: int) -> list[Orphan]:
        """Return the oldest orphans that are at least this old."""
        where = "WHERE since <= ? ORDER BY id LIMIT ?"
        return _orphans(transaction.execute(_ORPHANS + where, (self._clock() - seconds, limit)))

    def forget(self, transaction: Transaction, orphans: Sequence[Orphan]) -> None:
        """Remove orphans from the list. Removing one twice is no error."""
        transaction.executemany("DELETE FROM orphans WHERE id = ?", [(orphan.number,) for orphan in orphans])


_ORPHANS = "SELECT id, tenant, content_hash FROM orphans "


def _orphans(rows: Iterable[sqlite3.Row]) -> list[Orphan]:
    return [Orphan(row["id"], row["tenant"], row["content_hash"]) for row in rows]
