"""Convert a store to another embedder or other chunk settings."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import structlog

from protocol.errors import EmptyDocument, InvalidRequest
from protocol.repeating import MOST_ATTEMPTS
from retriever.ingestion.chunk_preparer import ChunkPreparer
from retriever.store.attempts import Attempts
from retriever.store.incoming import PreparedChunk, SourceText, read_triplets
from retriever.store.store import Store

_log = structlog.get_logger(__name__)
_DOCUMENTS_AT_ONCE = 64


class _Outdated(NamedTuple):
    id: int
    collection: int
    bytes: int


class Reembedding:
    """Cuts and embeds every document again whose fingerprint differs from ``preparer``'s.

    This runs before the indexes open, because vectors of two embedders cannot be searched together. Each group of
    documents is committed, so an interruption keeps the progress. A document above ``group_bytes`` is prepared in
    parts. A document that the new embedder cannot embed, or that ``MOST_ATTEMPTS`` processes did not survive, stays
    stored but cannot be found.
    """

    def __init__(self, store: Store, preparer: ChunkPreparer, attempts: Attempts, group_bytes: int) -> None:
        self._store = store
        self._preparer = preparer
        self._attempts = attempts
        self._group_bytes = group_bytes

    def run(self) -> None:
        """Convert the store. Raises what the embedder raises, and StorageFull."""
        with self._store.database.read() as transaction:
            outdated = "SELECT count(*) FROM documents WHERE fingerprint != ?"
            total = int(transaction.execute(outdated, (self._preparer.fingerprint,)).fetchone()[0])
        done = 0
        while done < total:
            with self._store.database.read() as transaction:
                lost = self._attempts.lost(transaction)
                rows = transaction.execute(
                    "SELECT id, collection, bytes FROM documents WHERE fingerprint != ? LIMIT ?",
                    (self._preparer.fingerprint, _DOCUMENTS_AT_ONCE),
                )
                group = self._group([_Outdated(*row) for row in rows], lost)
            with self._store.database.write() as transaction:
                self._attempts.begin(transaction, [row.id for row in group])
            try:
                self._convert(group, given_up=lost.get(group[0].id, 0) >= MOST_ATTEMPTS)
            except BaseException:
                with self._store.database.write() as transaction:
                    self._attempts.take_back(transaction)
                raise
            done += len(group)
            _log.info("documents re-embedded", done=done, total=total)

    def _group(self, rows: Sequence[_Outdated], lost: dict[int, int]) -> list[_Outdated]:
        """The first rows that fit a group: at least one; a document that a process did not survive is alone."""
        group = [rows[0]]
        size = rows[0].bytes
        for row in rows[1:]:
            size += row.bytes
            if size > self._group_bytes or row.id in lost or group[0].id in lost:
                break
            group.append(row)
        return group

    def _convert(self, group: Sequence[_Outdated], *, given_up: bool) -> None:
        if given_up:
            _log.error("document not re-embedded, which has ended the retriever", document=group[0].id)
            self._replace(group, [[[]]])
        elif group[0].bytes > self._group_bytes:
            self._convert_long(group[0])
        else:
            self._replace(group, [[chunks] for chunks in self._prepared(self._sources(group))])

    def _convert_long(self, row: _Outdated) -> None:
        (source,) = self._sources([row])
        try:
            # Nothing else writes before the indexes are open. So one transaction may take as long as embedding does.
            self._replace([row], [iter(self._preparer.parts(source).next, [])])
        except (EmptyDocument, InvalidRequest):
            self._warn(source)
            self._replace([row], [[[]]])

    def _replace(
        self, group: Sequence[_Outdated], prepared: Sequence[Iterator[list[PreparedChunk]] | list[list[PreparedChunk]]]
    ) -> None:
        with self._store.database.write() as transaction:
            for row, parts in zip(group, prepared, strict=True):
                self._store.documents.replace_chunks(transaction, row.collection, row.id, parts)
                transaction.execute(
                    "UPDATE documents SET fingerprint = ? WHERE id = ?", (self._preparer.fingerprint, row.id)
                )
            self._attempts.forget(transaction, [row.id for row in group])

    def _sources(self, group: Sequence[_Outdated]) -> list[SourceText]:
        with self._store.database.read() as transaction:
            text_of = "SELECT text, title, triplets FROM documents WHERE id = ?"
            rows = [transaction.execute(text_of, (row.id,)).fetchone() for row in group]
        return [SourceText(row["text"], row["title"], read_triplets(row["triplets"])) for row in rows]

    def _prepared(self, sources: Sequence[SourceText]) -> list[list[PreparedChunk]]:
        try:
            return self._preparer.prepare(sources)
        except (EmptyDocument, InvalidRequest):
            if len(sources) > 1:
                return [chunks for source in sources for chunks in self._prepared([source])]
            self._warn(sources[0])
            return [[]]

    def _warn(self, source: SourceText) -> None:
        _log.warning("document has no chunks under the new embedder", characters=len(source.text))
