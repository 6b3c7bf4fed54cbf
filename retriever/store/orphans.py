"""Orphans: contents that went with deleted and replaced documents, noted until nothing made of them is left."""

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence

from protocol.documents import Orphan
from retriever.store.database import Transaction


class Orphans:
    """The contents of removed chunks that no chunk of their tenant has any more, each in the commit that removed it.

    A content that comes back is no orphan any longer. Each call works inside the transaction it is given.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock

    def note(self, transaction: Transaction, document: int, removed: Iterable[str]) -> None:
        """Note those of a document's removed contents that are in no chunk now; the document's row must still be."""
        transaction.execute(
            """INSERT OR IGNORE INTO orphans (tenant, content_hash, collection, document_id, since)
               SELECT DISTINCT k.tenant, gone.value, k.name, d.document_id, ?
               FROM documents d JOIN collections k ON k.id = d.collection, json_each(?) AS gone
               WHERE d.id = ? AND NOT EXISTS (
                   SELECT 1 FROM chunks c JOIN collections other ON other.id = c.collection
                   WHERE c.content_hash = gone.value AND other.tenant = k.tenant)""",
            (self._clock(), json.dumps(list(removed)), document),
        )

    def adopt(self, transaction: Transaction, collection: int, contents: Iterable[str]) -> None:
        """Take contents that a chunk has again off the list."""
        transaction.execute(
            """DELETE FROM orphans WHERE tenant = (SELECT tenant FROM collections WHERE id = ?)
               AND content_hash IN (SELECT value FROM json_each(?))""",
            (collection, json.dumps(list(contents))),
        )

    def of_document(self, transaction: Transaction, tenant: str, collection: str, document_id: str) -> list[Orphan]:
        """Those that went with the document of this name, or with one in whose place it stands."""
        where = "WHERE tenant = ? AND collection = ? AND document_id = ? ORDER BY id"
        return _orphans(transaction.execute(_ORPHANS + where, (tenant, collection, document_id)))

    def older_than(self, transaction: Transaction, seconds: float, limit: int) -> list[Orphan]:
        """The oldest of those that are orphans for so long."""
        where = "WHERE since <= ? ORDER BY id LIMIT ?"
        return _orphans(transaction.execute(_ORPHANS + where, (self._clock() - seconds, limit)))

    def forget(self, transaction: Transaction, orphans: Sequence[Orphan]) -> None:
        """Take orphans off the list; one that is off it already is no error."""
        transaction.executemany("DELETE FROM orphans WHERE id = ?", [(orphan.number,) for orphan in orphans])


_ORPHANS = "SELECT id, tenant, content_hash FROM orphans "


def _orphans(rows: Iterable[sqlite3.Row]) -> list[Orphan]:
    return [Orphan(row["id"], row["tenant"], row["content_hash"]) for row in rows]
