"""What a graph takes in a retriever's store, and how far it has been read."""

from pathlib import Path
from typing import NamedTuple

from retriever.store.database import Database


class GraphSize(NamedTuple):
    """Rows of a store, and the ``bytes`` of its graph: all pages of the graph's tables and their indexes."""

    documents: int
    chunks: int
    entities: int
    statements: int
    relations: int
    bytes: int


class GraphStore:
    """The store of a retriever in ``folder``. It only reads, also beside the retriever."""

    def __init__(self, folder: Path) -> None:
        self._database = Database(folder / "store.sqlite3")

    def chunks_read(self) -> int:
        """Return how many chunks the graph has."""
        return self._row("SELECT count(*) FROM read_chunks")[0]

    def size(self) -> GraphSize:
        """Return what is stored."""
        return GraphSize._make(
            self._row(
                """SELECT (SELECT count(*) FROM documents), (SELECT count(*) FROM chunks),
                          (SELECT count(*) FROM entities), (SELECT count(*) FROM statements),
                          (SELECT count(*) FROM relations), sum(pgsize)
                   FROM dbstat WHERE name IN (
                       SELECT name FROM sqlite_schema
                       WHERE tbl_name IN ('entities', 'statements', 'mentions', 'relations', 'read_chunks'))"""
            )
        )

    def close(self) -> None:
        """Close the store."""
        self._database.close()

    def _row(self, sql: str) -> tuple[int, ...]:
        with self._database.read() as transaction:
            return tuple(transaction.execute(sql).fetchone())
