"""The live chunks, as search and the indexes read them."""

import json
import sqlite3
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from protocol.filters import Attributes
from protocol.graph import Source
from protocol.retrieval import Chunk, Lines, Pages
from retriever.embedding.base import Vector
from retriever.store.database import Transaction
from retriever.store.filter_sql import Condition

Ids = npt.NDArray[np.int64]
"""Chunk ids, [n]."""

_ROWS_AT_ONCE = 8192
_TEXTS_AT_ONCE = 256
_CHUNK = """SELECT c.id, c.position, c.text, c.content_hash, c.first_line, c.last_line, d.document_id, d.filename,
                   d.title, d.attributes, d.pages """


class Chunks:
    """Reads the live chunks: those of the current documents. Each call runs in the given transaction."""

    def live(self, transaction: Transaction, collection: int, ids: Sequence[int]) -> set[int]:
        """Return those of the ``ids`` that are of live chunks."""
        rows = transaction.execute(
            """SELECT c.id FROM json_each(?) AS wanted CROSS JOIN chunks c ON c.id = wanted.value
               WHERE c.collection = ?""",
            (json.dumps(list(ids)), collection),
        )
        return {row["id"] for row in rows}

    def resolve(self, transaction: Transaction, collection: int, ids: Sequence[int]) -> dict[int, Chunk]:
        """Return the live chunks among ``ids``, by id."""
        rows = transaction.execute(
            _CHUNK
            + """FROM json_each(?) AS wanted CROSS JOIN chunks c ON c.id = wanted.value
                    JOIN documents d ON d.id = c.document
               WHERE c.collection = ?""",
            (json.dumps(list(ids)), collection),
        )
        return {row["id"]: _chunk(row) for row in rows}

    def sources(self, transaction: Transaction, collection: int, ids: Sequence[int]) -> dict[int, Source]:
        """Return where the live chunks among ``ids`` stand, by id."""
        rows = transaction.execute(
            """SELECT c.id, c.position, c.content_hash, d.document_id FROM json_each(?) AS wanted
               CROSS JOIN chunks c ON c.id = wanted.value JOIN documents d ON d.id = c.document
               WHERE c.collection = ?""",
            (json.dumps(list(ids)), collection),
        )
        return {row["id"]: Source(row["document_id"], row["position"], row["content_hash"]) for row in rows}

    def of_document(self, transaction: Transaction, collection: int, document_id: str) -> list[Chunk]:
        """Return a document's chunks in order; an empty list if the document does not exist."""
        rows = transaction.execute(
            _CHUNK
            + """FROM documents d JOIN chunks c ON c.document = d.id
               WHERE d.collection = ? AND d.document_id = ? ORDER BY c.position""",
            (collection, document_id),
        )
        return [_chunk(row) for row in rows]

    def collections(self, transaction: Transaction) -> dict[int, int]:
        """Return how many live chunks the collections have that have any, by their keys."""
        return dict(map(tuple, transaction.execute("SELECT collection, count(*) FROM chunks GROUP BY collection")))

    def has_any(self, transaction: Transaction, collection: int) -> bool:
        """Return whether a collection has any chunk."""
        row = transaction.execute("SELECT 1 FROM chunks WHERE collection = ? LIMIT 1", (collection,)).fetchone()
        return row is not None

    def matching(self, transaction: Transaction, collection: int, condition: Condition) -> Ids:
        """Return the ids of live chunks whose documents match a filter, ascending."""
        live = "SELECT c.id FROM documents d JOIN chunks c ON c.document = d.id WHERE d.collection = ?"
        sql = f"{live} AND {condition.sql} ORDER BY c.id"  # nosec B608  # values are bound
        rows = transaction.execute(sql, (collection, *condition.values))
        return np.fromiter((row["id"] for row in rows), np.int64)

    def has_attribute(self, transaction: Transaction, collection: int, key: str) -> bool:
        """Return whether any document of a collection has an attribute."""
        where = "SELECT 1 FROM attributes WHERE collection = ? AND key = ? LIMIT 1"
        return transaction.execute(where, (collection, key)).fetchone() is not None

    def ids(self, transaction: Transaction, collection: int) -> Ids:
        """Return the ids of all live chunks of a collection, ascending."""
        rows = transaction.execute("SELECT id FROM chunks WHERE collection = ? ORDER BY id", (collection,))
        return np.fromiter((row["id"] for row in rows), np.int64)

    def vectors(self, transaction: Transaction, ids: Ids) -> Iterator[tuple[Ids, Vector]]:
        """Yield the embeddings of chunks in parts of up to 8,192, as ([n], [n, dimension])."""
        for at in range(0, len(ids), _ROWS_AT_ONCE):
            rows = transaction.execute(
                """SELECT c.id, c.embedding FROM json_each(?) AS wanted CROSS JOIN chunks c ON c.id = wanted.value""",
                (json.dumps(ids[at : at + _ROWS_AT_ONCE].tolist()),),
            ).fetchall()
            if rows:
                blob = b"".join(row["embedding"] for row in rows)
                yield (
                    np.array([row["id"] for row in rows], np.int64),
                    np.frombuffer(blob, np.float32).reshape(len(rows), -1),
                )

    def texts(self, transaction: Transaction, ids: Ids) -> Iterator[list[tuple[int, str]]]:
        """Yield the texts of chunks in parts of up to 256, as (id, text)."""
        for at in range(0, len(ids), _TEXTS_AT_ONCE):
            rows = transaction.execute(
                "SELECT c.id, c.text FROM json_each(?) AS wanted CROSS JOIN chunks c ON c.id = wanted.value",
                (json.dumps(ids[at : at + _TEXTS_AT_ONCE].tolist()),),
            )
            yield [(row["id"], row["text"]) for row in rows]

    def sample(self, transaction: Transaction, count: int, characters: int) -> list[str]:
        """Return texts of ``count`` live chunks with at least ``characters``, drawn from all collections."""
        rows = transaction.execute(
            "SELECT text FROM chunks WHERE length(text) >= ? ORDER BY random() LIMIT ?", (characters, count)
        )
        return [row["text"] for row in rows]

    def last_id(self, transaction: Transaction) -> int:
        """Return the highest id that any chunk has ever had."""
        row = transaction.execute("SELECT seq FROM sqlite_sequence WHERE name = 'chunks'").fetchone()
        return 0 if row is None else int(row["seq"])


def _chunk(row: sqlite3.Row) -> Chunk:
    lines = None if row["first_line"] is None else Lines(row["first_line"], row["last_line"])
    return Chunk(
        chunk_id=str(row["id"]),
        document_id=row["document_id"],
        filename=row["filename"],
        index=row["position"],
        text=row["text"],
        content_hash=row["content_hash"],
        attributes=msgspec.json.decode(row["attributes"], type=Attributes),
        title=row["title"],
        lines=lines,
        pages=None if lines is None or row["pages"] is None else _pages(lines, msgspec.json.decode(row["pages"])),
    )


def _pages(lines: Lines, first_lines: Sequence[int]) -> Pages:
    """The pages that hold these lines, given the first line of each page."""
    return Pages(bisect_right(first_lines, lines.first), bisect_right(first_lines, lines.last))
