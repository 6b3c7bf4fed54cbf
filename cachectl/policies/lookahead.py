"""What the requests that wait will need, by node: the near future, known for certain."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Lookahead:
    """The waiting requests of all instances in order of arrival, indexed by the keys of the nodes on their paths."""

    def __init__(self) -> None:
        self._arrivals = 0
        # Both in order of arrival, as dictionaries are.
        self._waiting: dict[str, tuple[int, Sequence[bytes]]] = {}
        self._needed: dict[bytes, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, query_id: str, keys: Sequence[bytes]) -> None:
        """Count a request in that begins to wait."""
        self._arrivals += 1
        self._waiting[query_id] = (self._arrivals, keys)
        for key in keys:
            self._needed.setdefault(key, {})[query_id] = self._arrivals

    def leave(self, query_id: str) -> Sequence[bytes]:
        """Count a request out that waits no longer; the keys of its path."""
        _, keys = self._waiting.pop(query_id)
        for key in keys:
            waiting = self._needed[key]
            del waiting[query_id]
            if not waiting:
                del self._needed[key]
        return keys

    def next_use(self, key: bytes) -> int | None:
        """Arrivals between the request that waits for longest and the first that needs this node; None if none does.

        It only falls while requests are served, so what is worth more the nearer it is needed only gains.
        """
        waiting = self._needed.get(key)
        if not waiting:
            return None
        oldest, _ = next(iter(self._waiting.values()))
        return next(iter(waiting.values())) - oldest

    def uses(self, key: bytes) -> int:
        """Waiting requests that need this node."""
        return len(self._needed.get(key, ()))

    def distances(self, key: bytes) -> list[int]:
        """The distance of every waiting request that needs this node, as ``next_use`` counts it."""
        waiting = self._needed.get(key)
        if not waiting:
            return []
        oldest, _ = next(iter(self._waiting.values()))
        return [arrival - oldest for arrival in waiting.values()]

    def waiting_for(self, key: bytes) -> list[str]:
        """The waiting requests that need this node, oldest first."""
        return list(self._needed.get(key, ()))
