"""The SQLite file: one writer at a time, any number of readers, and errors in RAGTree's words."""

import errno
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue

from protocol.errors import ConfigError, StorageFull
from retriever.store.schema import VERSIONS

Transaction = sqlite3.Connection
"""A connection inside a transaction; it must not outlive the ``with`` block that gave it."""


class Database:
    """The store's SQLite file in WAL mode.

    ``synchronous`` is FULL: in WAL mode NORMAL may lose the last commits with the power, and a job that was accepted
    must not be lost. It costs one fsync a commit, which groups of documents share. A store of an older version is
    brought up to this one. Raises ConfigError for a newer one, and for a file that is no store.
    """

    def __init__(self, path: Path, max_bytes: int | None = None) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._write_lock = threading.Lock()
        self._readers: SimpleQueue[sqlite3.Connection] = SimpleQueue()
        with _storage_errors():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # SQLite makes its other files with the mode of this one.
            path.touch(mode=0o600)
            try:
                self._writer = self._connect()
                self._create_schema()
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                raise ConfigError(f"{path} is not a SQLite file") from error

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """A transaction that commits at the end of the block, and leaves no trace if the block or the commit fails.

        Raises StorageFull where the disk is.
        """
        with self._write_lock, _storage_errors():
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self.commit(self._writer)
            except BaseException:
                # SQLite has already rolled back by itself after some errors, a full disk among them.
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise

    def commit(self, transaction: Transaction) -> None:
        """Make a transaction last; the one step by which anything in the store becomes visible."""
        transaction.execute("COMMIT")

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """A transaction that sees one state of the store, whatever is written meanwhile."""
        try:
            connection = self._readers.get_nowait()
        except Empty:
            connection = self._connect()
            connection.execute("PRAGMA query_only = ON")
        try:
            connection.execute("BEGIN")
            yield connection
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._readers.put(connection)

    def close(self) -> None:
        """Close every connection; no transaction may be open."""
        with self._write_lock:
            while not self._readers.empty():
                self._readers.get().close()
            self._writer.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=30)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        if self._max_bytes is not None:
            page = connection.execute("PRAGMA page_size").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {max(1, self._max_bytes // page)}")
        return connection

    def _create_schema(self) -> None:
        version = self._writer.execute("PRAGMA user_version").fetchone()[0]
        if version > len(VERSIONS):
            raise ConfigError(f"{self._path} is a store of version {version}, this is version {len(VERSIONS)}")
        missing = " ".join(VERSIONS[version:])
        if missing:
            self._writer.executescript(f"BEGIN IMMEDIATE; {missing} PRAGMA user_version = {len(VERSIONS)}; COMMIT;")


@contextmanager
def _storage_errors() -> Iterator[None]:
    """Turns what a full disk raises into StorageFull."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
            raise StorageFull("the disk has no room for this; nothing of it was kept") from error
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull("the disk has no room for this; nothing of it was kept") from error
        raise
