"""The conversion of a store to another embedder or another way of cutting."""

from collections.abc import Sequence

import structlog

from protocol.errors import EmptyDocument, InvalidRequest
from retriever.ingestion.preparing import Preparer, SourceText
from retriever.store.database import Database
from retriever.store.documents import Documents, PreparedChunk

_log = structlog.get_logger(__name__)
_DOCUMENTS_AT_ONCE = 64


def reembed(database: Database, documents: Documents, preparer: Preparer) -> int:
    """Cut and embed anew every document that was prepared otherwise than ``preparer`` does; returns how many.

    It runs before the indexes are opened, as vectors of two embedders cannot be searched together. What is done stays
    done if it is interrupted. A document that means nothing to the new embedder is kept and cannot be found. Raises
    what the embedder raises, and StorageFull.
    """
    fingerprint = preparer.fingerprint
    with database.read() as transaction:
        others = "SELECT count(*) FROM documents WHERE fingerprint != ?"
        total = int(transaction.execute(others, (fingerprint,)).fetchone()[0])
    done = 0
    while done < total:
        with database.read() as transaction:
            rows = transaction.execute(
                "SELECT id, collection, text, title FROM documents WHERE fingerprint != ? LIMIT ?",
                (fingerprint, _DOCUMENTS_AT_ONCE),
            ).fetchall()
        prepared = _prepared(preparer, [SourceText(row["text"], row["title"]) for row in rows])
        with database.write() as transaction:
            for row, chunks in zip(rows, prepared, strict=True):
                documents.replace_chunks(transaction, row["collection"], row["id"], chunks)
                transaction.execute("UPDATE documents SET fingerprint = ? WHERE id = ?", (fingerprint, row["id"]))
        done += len(rows)
        _log.info("documents embedded anew", done=done, total=total)
    return done


def _prepared(preparer: Preparer, sources: Sequence[SourceText]) -> list[list[PreparedChunk]]:
    try:
        return preparer.prepare(sources)
    except (EmptyDocument, InvalidRequest):
        if len(sources) > 1:
            return [chunks for source in sources for chunks in _prepared(preparer, [source])]
        _log.warning("a document means nothing to the new embedder", characters=len(sources[0].text))
        return [[]]
