"""Convert a store to another embedder or other chunk settings."""

from collections.abc import Sequence

import structlog

from protocol.errors import EmptyDocument, InvalidRequest
from retriever.ingestion.chunk_preparer import ChunkPreparer, SourceText
from retriever.store.database import Database
from retriever.store.documents import Documents
from retriever.store.prepared_chunk import PreparedChunk
from retriever.store.triplet_column import read

_log = structlog.get_logger(__name__)
_DOCUMENTS_AT_ONCE = 64


def reembed(database: Database, documents: Documents, preparer: ChunkPreparer) -> int:
    """Cut and embed every document again whose fingerprint differs from ``preparer``'s. Return how many.

    This runs before the indexes open, because vectors of two embedders cannot be searched together. Each group of
    documents is committed, so an interruption keeps the progress. A document that the new embedder cannot embed stays
    stored but cannot be found. Raises what the embedder raises, and StorageFull.
    """
    fingerprint = preparer.fingerprint
    with database.read() as transaction:
        outdated = "SELECT count(*) FROM documents WHERE fingerprint != ?"
        total = int(transaction.execute(outdated, (fingerprint,)).fetchone()[0])
    done = 0
    while done < total:
        with database.read() as transaction:
            rows = transaction.execute(
                "SELECT id, collection, text, title, triplets FROM documents WHERE fingerprint != ? LIMIT ?",
                (fingerprint, _DOCUMENTS_AT_ONCE),
            ).fetchall()
        prepared = _prepared(preparer, [SourceText(row["text"], row["title"], read(row["triplets"])) for row in rows])
        with database.write() as transaction:
            for row, chunks in zip(rows, prepared, strict=True):
                documents.replace_chunks(transaction, row["collection"], row["id"], chunks)
                transaction.execute("UPDATE documents SET fingerprint = ? WHERE id = ?", (fingerprint, row["id"]))
        done += len(rows)
        _log.info("documents re-embedded", done=done, total=total)
    return done


def _prepared(preparer: ChunkPreparer, sources: Sequence[SourceText]) -> list[list[PreparedChunk]]:
    try:
        return preparer.prepare(sources)
    except (EmptyDocument, InvalidRequest):
        if len(sources) > 1:
            return [chunks for source in sources for chunks in _prepared(preparer, [source])]
        _log.warning("document has no chunks under the new embedder", characters=len(sources[0].text))
        return [[]]
