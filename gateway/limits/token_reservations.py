"""Tokens that the running queries of each key are expected to use."""

from collections import Counter

_WEIGHT = 0.2
"""Weight of the newest query in the moving average."""
_FIRST_SHARE = 4
"""Until a key's first query has ended, each is expected to use a quarter of the quota."""


class TokenReservations:
    """Tokens reserved for running queries, so that a burst of queries is not admitted on the same free tokens.

    A query is expected to use the moving average of the key's past queries. Each gateway reserves on its own, for the
    keys with token quotas.
    """

    def __init__(self) -> None:
        self._reserved = Counter[str]()
        self._typical: dict[str, float] = {}

    def of(self, owner: str) -> int:
        """Tokens reserved for the key's running queries."""
        return self._reserved[owner]

    def reserve(self, owner: str, limit: int) -> int:
        """Reserve a query's expected tokens. Returns their number."""
        reserved = round(self._typical.get(owner, limit / _FIRST_SHARE))
        self._reserved[owner] += reserved
        return reserved

    def release(self, owner: str, reserved: int) -> None:
        """Release a reservation: the query never started, or its tokens are counted now."""
        self._reserved[owner] -= reserved

    def learn(self, owner: str, used: int) -> None:
        """Update the moving average with a query's tokens."""
        typical = self._typical.get(owner, used)
        self._typical[owner] = typical + _WEIGHT * (used - typical)
