"""Orphans: content hashes of removed chunks, recorded until their KV is deleted."""

import json
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from protocol.documents import Orphan
from protocol.retrieval import StoreRevision
from retriever.store.database import Transaction


class Orphans:
    """The content hashes that no chunk of their tenant has any more. Each call runs in the given transaction.

    A hash is recorded in the commit that removes its last chunk. It is cleared if a chunk with this content returns.
    The highest id that was given out is the store's revision: ids only rise, even if all orphans are forgotten.
    Ages count from when this object has first seen an orphan, in seconds of a monotonic ``clock``.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # When a revision was the newest one, oldest first.
        self._seen: deque[tuple[float, int]] = deque()
        self._seen_lock = threading.Lock()

    def add(self, transaction: Transaction, document: int, removed: Iterable[str]) -> None:
        """Record those of a document's removed contents that no chunk has now. The document's row must still exist."""
        transaction.execute(
            """INSERT OR IGNORE INTO orphans (tenant, content_hash, collection, document_id)
               SELECT DISTINCT k.tenant, gone.value, k.name, d.document_id
               FROM documents d JOIN collections k ON k.id = d.collection, json_each(?) AS gone
               WHERE d.id = ? AND NOT EXISTS (
                   SELECT 1 FROM chunks c JOIN collections other ON other.id = c.collection
                   WHERE c.content_hash = gone.value AND other.tenant = k.tenant)""",
            (json.dumps(list(removed)), document),
        )

    def clear(self, transaction: Transaction, collection: int, document: int) -> None:
        """Remove the contents of a document's chunks from the list."""
        transaction.execute(
            """DELETE FROM orphans WHERE tenant = (SELECT tenant FROM collections WHERE id = ?)
               AND content_hash IN (SELECT content_hash FROM chunks WHERE document = ?)""",
            (collection, document),
        )

    def revision(self, transaction: Transaction) -> StoreRevision:
        """Return the revision of the store that the transaction sees."""
        name, number = transaction.execute(
            "SELECT name, coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'orphans'), 0) FROM store"
        ).fetchone()
        return StoreRevision(name, number)

    def of_document(self, transaction: Transaction, tenant: str, collection: str, document_id: str) -> list[Orphan]:
        """Return the orphans of a document with this name, deleted or replaced."""
        where = "WHERE tenant = ? AND collection = ? AND document_id = ? ORDER BY id"
        return _orphans(transaction.execute(_ORPHANS + where, (tenant, collection, document_id)))

    def older_than(self, transaction: Transaction, seconds: float, limit: int) -> list[Orphan]:
        """Return the oldest orphans that are at least this old and not given up."""
        where = "WHERE id <= ? AND given_up IS NULL ORDER BY id LIMIT ?"
        return _orphans(transaction.execute(_ORPHANS + where, (self._newest_before(transaction, seconds), limit)))

    def attempt(self, transaction: Transaction, orphans: Sequence[Orphan]) -> None:
        """Count an attempt to delete the KV of each."""
        numbers = [(orphan.number,) for orphan in orphans]
        transaction.executemany("UPDATE orphans SET attempts = attempts + 1 WHERE id = ?", numbers)

    def give_up(self, transaction: Transaction, orphans: Sequence[Orphan], reason: str) -> None:
        """List orphans no more for a sweep. They stay on the list of their document."""
        reasons = [(reason, orphan.number) for orphan in orphans]
        transaction.executemany("UPDATE orphans SET given_up = ? WHERE id = ?", reasons)

    def forget(self, transaction: Transaction, orphans: Sequence[Orphan]) -> None:
        """Remove orphans from the list. Removing one twice is no error."""
        transaction.executemany("DELETE FROM orphans WHERE id = ?", [(orphan.number,) for orphan in orphans])

    def _newest_before(self, transaction: Transaction, seconds: float) -> int:
        """The highest id that this object saw at least ``seconds`` ago; 0 if there is none."""
        newest = self.revision(transaction).number
        with self._seen_lock:
            now = self._clock()
            if not self._seen or self._seen[-1][1] < newest:
                self._seen.append((now, newest))
            while len(self._seen) > 1 and self._seen[1][0] <= now - seconds:
                self._seen.popleft()
            seen_at, number = self._seen[0]
            return number if seen_at <= now - seconds else 0


_ORPHANS = "SELECT id, tenant, content_hash, attempts, (SELECT name FROM store) AS store FROM orphans "


def _orphans(rows: Iterable[sqlite3.Row]) -> list[Orphan]:
    return [
        Orphan(row["id"], row["tenant"], row["content_hash"], StoreRevision(row["store"], row["id"]), row["attempts"])
        for row in rows
    ]
