"""The chunks of long documents that are not all ready yet."""

from collections.abc import Sequence

from retriever.store.database import Transaction
from retriever.store.prepared_chunk import PreparedChunk
from retriever.store.triplet_column import stored


class StagedChunks:
    """Keeps chunks on disk until all of their document are there. Each call runs in the given transaction.

    They belong to an item of the queue, and leave with it.
    """

    def add(self, transaction: Transaction, item: int, position: int, chunks: Sequence[PreparedChunk]) -> None:
        """Stage consecutive chunks of an item's document, the first of which has this position."""
        transaction.executemany(
            """INSERT INTO staged_chunks (item, position, id, text, content_hash, embedding, first_line, last_line,
                                          triplets)
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)""",
            [
                (
                    *(item, position + n, chunk.id, chunk.chunk.text, chunk.chunk.content_hash),
                    *(chunk.embedding.tobytes(), chunk.lines.first, chunk.lines.last, stored(chunk.triplets)),
                )
                for n, chunk in enumerate(chunks)
            ],
        )

    def move(self, transaction: Transaction, item: int, collection: int, document: int) -> list[int]:
        """Make an item's chunks those of a document, which must have no others. Return their ids."""
        transaction.execute(
            """INSERT INTO chunks (id, document, collection, position, text, content_hash, embedding, first_line,
                                   last_line, triplets)
               SELECT id, ?, ?, position, text, content_hash, embedding, first_line, last_line, triplets
               FROM staged_chunks WHERE item = ? ORDER BY position""",
            (document, collection, item),
        )
        rows = transaction.execute("SELECT id FROM staged_chunks WHERE item = ? ORDER BY position", (item,)).fetchall()
        transaction.execute("DELETE FROM staged_chunks WHERE item = ?", (item,))
        return [row["id"] for row in rows]

    def clear(self, transaction: Transaction) -> None:
        """Drop all that an earlier process has staged."""
        transaction.execute("DELETE FROM staged_chunks")
