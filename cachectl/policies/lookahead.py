"""What waiting requests need, by node."""

from __future__ import annotations

from collections.abc import Sequence


class Lookahead:
    """The waiting requests of all instances in order of arrival, indexed by the keys of the nodes on their paths."""

    def __init__(self) -> None:
        self._arrivals = 0
        # Both in order of arrival, because dictionaries keep the order of insertion.
        self._waiting: dict[str, tuple[int, Sequence[bytes]]] = {}
        self._needed: dict[bytes, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, query_id: str, keys: Sequence[bytes]) -> None:
        """Add a request that begins to wait, with the keys of its path."""
        self._arrivals += 1
        self._waiting[query_id] = (self._arrivals, keys)
        for key in keys:
            self._needed.setdefault(key, {})[query_id] = self._arrivals

    def leave(self, query_id: str) -> Sequence[bytes]:
        """Remove a request that no longer waits. Returns the keys of its path."""
        _, keys = self._waiting.pop(query_id)
        for key in keys:
            waiting = self._needed[key]
            del waiting[query_id]
            if not waiting:
                del self._needed[key]
        return keys

    def needs(self, key: bytes) -> bool:
        """Whether a waiting request needs this node."""
        return key in self._needed

    def next_use(self, key: bytes) -> int | None:
        """Arrivals between the longest waiting request and the first that needs this node. None if none needs it.

        The distance only falls while requests are served, so a priority that rises with nearness only rises.
        """
        waiting = self._needed.get(key)
        if not waiting:
            return None
        oldest, _ = next(iter(self._waiting.values()))
        return next(iter(waiting.values())) - oldest

    def distances(self, key: bytes) -> list[int]:
        """The distance of every waiting request that needs this node, counted as in ``next_use``."""
        waiting = self._needed.get(key)
        if not waiting:
            return []
        oldest, _ = next(iter(self._waiting.values()))
        return [arrival - oldest for arrival in waiting.values()]

    def waiting_for(self, key: bytes) -> list[str]:
        """The waiting requests that need this node, oldest first."""
        return list(self._needed.get(key, ()))
