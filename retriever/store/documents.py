"""Reading, writing and deleting documents."""

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from protocol.documents import DEFAULT_COLLECTION, CollectionInfo, DocumentInfo, DocumentPage, StoredDocument
from protocol.errors import UnknownCollection, UnknownDocument
from protocol.retrieval import SearchKind, StoreRevision
from retriever.store.database import Transaction
from retriever.store.filter_sql import kind_of
from retriever.store.incoming import IncomingDocument, PreparedChunk, stored_triplets
from retriever.store.orphans import Orphans

_INFO = """SELECT d.document_id, d.filename, d.title, d.content_hash, d.bytes, d.attributes, d.created_at, d.updated_at,
                  (SELECT count(*) FROM chunks WHERE document = d.id) AS chunks FROM documents d """


class Replaced(NamedTuple):
    """The ids of the chunks that a document had, and of those that it has."""

    removed: list[int]
    added: list[int]


class Documents:
    """The documents of all collections, with their chunks and attributes. Each call runs in the given transaction.

    Every change to chunks also updates ``orphans``.
    """

    def __init__(self, orphans: Orphans, clock: Callable[[], float] = time.time) -> None:
        self._orphans = orphans
        self._clock = clock

    def revision(self, transaction: Transaction) -> StoreRevision:
        """Return the revision of the store that the transaction sees. Every loss of a content raises it."""
        return self._orphans.revision(transaction)

    def collection(self, transaction: Transaction, tenant: str, name: str) -> int | None:
        """Return the key of a collection; None if it is the default one and empty. Raises UnknownCollection."""
        row = transaction.execute("SELECT id FROM collections WHERE tenant = ? AND name = ?", (tenant, name)).fetchone()
        if row is None and name != DEFAULT_COLLECTION:
            raise UnknownCollection(f"there is no collection {name!r}", param="collection")
        return None if row is None else int(row["id"])

    def search_kind(self, transaction: Transaction, collection: int) -> SearchKind | None:
        """Return how a collection is searched by default; None if it is not set."""
        (kind,) = transaction.execute("SELECT search FROM collections WHERE id = ?", (collection,)).fetchone()
        return None if kind is None else SearchKind(kind)

    def put_collection(self, transaction: Transaction, tenant: str, name: str, search: SearchKind | None) -> None:
        """Create a collection if necessary, and set how it is searched by default."""
        collection = self.ensure_collection(transaction, tenant, name)
        transaction.execute("UPDATE collections SET search = ? WHERE id = ?", (search, collection))

    def ensure_collection(self, transaction: Transaction, tenant: str, name: str) -> int:
        """Return the key of a collection, creating it if necessary."""
        insert = "INSERT INTO collections (tenant, name, created_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        transaction.execute(insert, (tenant, name, self._clock()))
        collection = self.collection(transaction, tenant, name)
        assert collection is not None
        return collection

    def collections(self, transaction: Transaction, tenant: str) -> list[CollectionInfo]:
        """Return the tenant's collections, sorted by name. The default collection is always listed."""
        rows = transaction.execute(
            """SELECT name, (SELECT count(*) FROM documents WHERE collection = c.id) AS documents,
                      (SELECT count(*) FROM chunks WHERE collection = c.id) AS chunks, search
               FROM collections c WHERE tenant = ?""",
            (tenant,),
        ).fetchall()
        infos = {row["name"]: msgspec.convert(dict(row), CollectionInfo) for row in rows}
        infos.setdefault(DEFAULT_COLLECTION, CollectionInfo(DEFAULT_COLLECTION, 0, 0))
        return [infos[name] for name in sorted(infos)]

    def get(self, transaction: Transaction, tenant: str, name: str, document_id: str) -> StoredDocument:
        """Return a document with its text. Raises UnknownCollection or UnknownDocument."""
        collection = self.collection(transaction, tenant, name)
        where = "WHERE d.collection = ? AND d.document_id = ?"
        row = transaction.execute(_INFO + where, (collection, document_id)).fetchone()
        if row is None:
            raise UnknownDocument(f"there is no document {document_id!r} in {name!r}", param="document_id")
        text_of = "SELECT text FROM documents WHERE collection = ? AND document_id = ?"
        (text,) = transaction.execute(text_of, (collection, document_id)).fetchone()
        return StoredDocument(_info(row, name), text)

    def page(self, transaction: Transaction, tenant: str, name: str, limit: int, after: str) -> DocumentPage:
        """Return at most ``limit`` documents with ids above ``after``. Raises UnknownCollection."""
        collection = self.collection(transaction, tenant, name)
        where = "WHERE d.collection = ? AND d.document_id > ? ORDER BY d.document_id LIMIT ?"
        rows = transaction.execute(_INFO + where, (collection, after, limit + 1)).fetchall()
        infos = tuple(_info(row, name) for row in rows[:limit])
        return DocumentPage(infos, infos[-1].document_id if len(rows) > limit else None)

    def content_hash(self, transaction: Transaction, collection: int, document_id: str) -> str | None:
        """Return a stored document's content hash, or None."""
        where = "SELECT content_hash FROM documents WHERE collection = ? AND document_id = ?"
        row = transaction.execute(where, (collection, document_id)).fetchone()
        return None if row is None else str(row["content_hash"])

    def put(
        self,
        transaction: Transaction,
        collection: int,
        document: IncomingDocument,
        chunks: Sequence[PreparedChunk],
        fingerprint: str,
    ) -> list[int]:
        """Store a document, replacing the one with its id. Return the ids of the removed chunks."""
        key = self._put_row(transaction, collection, document, fingerprint)
        return self.replace_chunks(transaction, collection, key, [chunks])

    def stage(self, transaction: Transaction, item: int, position: int, chunks: Sequence[PreparedChunk]) -> None:
        """Keep consecutive chunks of a queued document, from this position on, until all of its chunks are there.

        They belong to an item of the queue, and leave with it.
        """
        transaction.executemany(
            """INSERT INTO staged_chunks (item, position, id, text, content_hash, embedding, first_line, last_line,
                                          triplets)
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)""",
            [(item, *row) for row in _rows(position, chunks)],
        )

    def drop_staged(self, transaction: Transaction) -> None:
        """Drop all chunks that an earlier process has staged."""
        transaction.execute("DELETE FROM staged_chunks")

    def put_staged(
        self, transaction: Transaction, collection: int, document: IncomingDocument, item: int, fingerprint: str
    ) -> Replaced:
        """Store a document whose chunks are staged for an item of the queue, replacing the one with its id."""
        key = self._put_row(transaction, collection, document, fingerprint)
        removed = self._remove_chunks(transaction, key)
        transaction.execute(
            """INSERT INTO chunks (id, document, collection, position, text, content_hash, embedding, first_line,
                                   last_line, triplets)
               SELECT id, ?, ?, position, text, content_hash, embedding, first_line, last_line, triplets
               FROM staged_chunks WHERE item = ? ORDER BY position""",
            (key, collection, item),
        )
        staged = "SELECT id FROM staged_chunks WHERE item = ? ORDER BY position"
        added = [row["id"] for row in transaction.execute(staged, (item,)).fetchall()]
        transaction.execute("DELETE FROM staged_chunks WHERE item = ?", (item,))
        self._orphans.clear(transaction, collection, key)
        self._orphans.add(transaction, key, removed.values())
        return Replaced(list(removed), added)

    def replace_chunks(
        self, transaction: Transaction, collection: int, document: int, parts: Iterable[Sequence[PreparedChunk]]
    ) -> list[int]:
        """Replace a document's chunks by consecutive parts. Return the ids of the removed ones."""
        removed = self._remove_chunks(transaction, document)
        position = 0
        for part in parts:
            transaction.executemany(
                """INSERT INTO chunks (document, collection, position, id, text, content_hash, embedding, first_line,
                                       last_line, triplets)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
                [(document, collection, *row) for row in _rows(position, part)],
            )
            position += len(part)
        self._orphans.clear(transaction, collection, document)
        self._orphans.add(transaction, document, removed.values())
        return list(removed)

    def delete(self, transaction: Transaction, collection: int, document_id: str) -> list[int] | None:
        """Delete a document. Return the ids of its chunks, or None if it does not exist."""
        where = "SELECT id FROM documents WHERE collection = ? AND document_id = ?"
        row = transaction.execute(where, (collection, document_id)).fetchone()
        if row is None:
            return None
        removed = self._remove_chunks(transaction, row["id"])
        self._orphans.add(transaction, row["id"], removed.values())
        transaction.execute("DELETE FROM documents WHERE id = ?", (row["id"],))
        return list(removed)

    def _put_row(self, transaction: Transaction, collection: int, document: IncomingDocument, fingerprint: str) -> int:
        """Store all of a document but its chunks. Return its key."""
        now = self._clock()
        row = transaction.execute(
            """INSERT INTO documents (collection, document_id, filename, title, text, bytes, attributes, content_hash,
                                      fingerprint, created_at, updated_at, pages, triplets)
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
               ON CONFLICT (collection, document_id) DO UPDATE SET filename = excluded.filename, title = excluded.title,
                   text = excluded.text, bytes = excluded.bytes, attributes = excluded.attributes,
                   content_hash = excluded.content_hash, fingerprint = excluded.fingerprint,
                   updated_at = excluded.updated_at, pages = excluded.pages, triplets = excluded.triplets
               RETURNING id""",
            (
                *(collection, document.document_id, document.filename, document.title, document.text),
                *(len(document.text.encode()), msgspec.json.encode(document.attributes).decode()),
                *(document.content_hash, fingerprint, now, now),
                msgspec.json.encode(document.pages).decode() if document.pages else None,
                stored_triplets(document.triplets),
            ),
        ).fetchone()
        key = int(row["id"])
        transaction.execute("DELETE FROM attributes WHERE document = ?", (key,))
        transaction.executemany(
            "INSERT INTO attributes (document, collection, key, kind, value) VALUES (?, ?, ?, ?, ?)",
            [(key, collection, name, kind_of(value), value) for name, value in document.attributes.items()],
        )
        return key

    def _remove_chunks(self, transaction: Transaction, document: int) -> dict[int, str]:
        """Delete a document's chunks. Return their content hashes by id."""
        rows = transaction.execute("DELETE FROM chunks WHERE document = ? RETURNING id, content_hash", (document,))
        return {row["id"]: row["content_hash"] for row in rows.fetchall()}


def _rows(position: int, chunks: Iterable[PreparedChunk]) -> Iterator[tuple[object, ...]]:
    """What the store keeps of consecutive chunks from this position on: position, id, text and so on."""
    for place, prepared in enumerate(chunks, position):
        chunk, lines = prepared.chunk, prepared.lines
        yield (
            *(place, prepared.id, chunk.text, chunk.content_hash, prepared.embedding.tobytes()),
            *(lines.first, lines.last, stored_triplets(prepared.triplets)),
        )


def _info(row: sqlite3.Row, collection: str) -> DocumentInfo:
    fields = {**row, "collection": collection, "attributes": msgspec.json.decode(row["attributes"])}
    return msgspec.convert(fields, DocumentInfo)
