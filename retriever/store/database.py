"""The SQLite file: one writer at a time, any number of readers."""

import errno
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue

from protocol.errors import ConfigError, StorageFull
from retriever.store.schema import TABLES, UPGRADES, VERSION

Transaction = sqlite3.Connection
"""A connection inside a transaction. Do not use it outside the ``with`` block that provides it."""


class Database:
    """The store's SQLite file in WAL mode.

    ``synchronous`` is FULL because an accepted job must survive a power loss, and NORMAL may lose the last commits in
    WAL mode. FULL costs one fsync per commit, which the documents of a group share. Opening upgrades an older store.
    Raises ConfigError for a store that is too old or of a newer version, and for a file that is not a store.
    """

    def __init__(self, path: Path, max_bytes: int | None = None) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._write_lock = threading.Lock()
        self._readers: SimpleQueue[sqlite3.Connection] = SimpleQueue()
        with _storage_errors():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # SQLite copies the mode of this file to its other files.
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
        """Run the block in a transaction, rolled back if it or the commit fails. Raises StorageFull."""
        with self._write_lock, _storage_errors():
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self.commit(self._writer)
            except BaseException:
                # SQLite has already rolled back after some errors, such as a full disk.
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise

    def commit(self, transaction: Transaction) -> None:
        """Commit a transaction. This is the only step that makes changes to the store visible."""
        transaction.execute("COMMIT")

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """Run the block in a read transaction that sees one snapshot of the store."""
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
        """Close every connection. No transaction may be open."""
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
        if version == VERSION:
            return
        missing = [UPGRADES.get(number) for number in range(version + 1, VERSION + 1)] if version else [TABLES]
        if not missing or None in missing:
            known = f"{min(UPGRADES) - 1} to {VERSION}"
            raise ConfigError(f"{self._path} has schema version {version}, but this release reads {known}")
        statements = " ".join(filter(None, missing))
        self._writer.executescript(f"BEGIN IMMEDIATE; {statements} PRAGMA user_version = {VERSION}; COMMIT;")


@contextmanager
def _storage_errors() -> Iterator[None]:
    """Translate the errors of a full disk into StorageFull."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
            raise StorageFull("the disk is full; nothing of this change was stored") from error
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull("the disk is full; nothing of this change was stored") from error
        raise
