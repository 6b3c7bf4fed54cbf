"""How often processes have ended while they tried something."""

import uuid
from collections.abc import Iterable

from retriever.store.database import Transaction


class Attempts:
    """Counts the attempts at the things of one ``kind``, by id. Each call runs in the given transaction.

    An attempt is committed before it begins, and taken back when its process goes on without success. So only attempts
    that their process did not survive are left. ``kind`` is "item", "document" or "chunk".
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._process = uuid.uuid4().hex

    def begin(self, transaction: Transaction, ids: Iterable[int]) -> None:
        """Count an attempt of this process at each of the ``ids``, unless one is running. Commit before it begins."""
        transaction.executemany(
            """INSERT INTO attempts (kind, id, count, process) VALUES (?, ?, 1, ?)
               ON CONFLICT DO UPDATE SET count = count + 1, process = excluded.process
               WHERE process IS NOT excluded.process""",
            [(self._kind, id_, self._process) for id_ in ids],
        )

    def take_back(self, transaction: Transaction) -> None:
        """Take back all running attempts of this process."""
        mine = (self._kind, self._process)
        transaction.execute("DELETE FROM attempts WHERE kind = ? AND process = ? AND count = 1", mine)
        transaction.execute(
            "UPDATE attempts SET count = count - 1, process = NULL WHERE kind = ? AND process = ?", mine
        )

    def lose(self, transaction: Transaction, ids: Iterable[int]) -> None:
        """Let running attempts count, because a process that works for this one did not survive them."""
        transaction.executemany(
            "UPDATE attempts SET process = NULL WHERE kind = ? AND id = ?", [(self._kind, id_) for id_ in ids]
        )

    def forget(self, transaction: Transaction, ids: Iterable[int]) -> None:
        """Forget all attempts at what is done or given up."""
        transaction.executemany("DELETE FROM attempts WHERE kind = ? AND id = ?", [(self._kind, id_) for id_ in ids])

    def lost(self, transaction: Transaction) -> dict[int, int]:
        """Return how many processes did not survive, by the id of what they tried."""
        rows = transaction.execute(
            "SELECT id, count - (process IS ?) AS lost FROM attempts WHERE kind = ?", (self._process, self._kind)
        )
        return {row["id"]: row["lost"] for row in rows if row["lost"]}
