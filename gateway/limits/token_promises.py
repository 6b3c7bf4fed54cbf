"""What the running queries of each key are expected to use of its tokens."""

from collections import Counter

_WEIGHT = 0.2
"""How much the newest query counts for what the next is expected to use."""
_FIRST_SHARE = 4
"""Before a key's first query has ended, each is expected to use so large a part of the quota."""


class TokenPromises:
    """Tokens promised to queries that run, so that a burst of them cannot all be admitted on the same room.

    A query is expected to use what the key's queries came to so far, on a moving average. Belongs to one gateway; it
    knows as many keys as have token quotas.
    """

    def __init__(self) -> None:
        self._promised = Counter[str]()
        self._typical: dict[str, float] = {}

    def of(self, owner: str) -> int:
        """What the key's running queries are expected to use."""
        return self._promised[owner]

    def make(self, owner: str, limit: int) -> int:
        """Promise a query its tokens; how many."""
        promised = round(self._typical.get(owner, limit / _FIRST_SHARE))
        self._promised[owner] += promised
        return promised

    def take_back(self, owner: str, promised: int) -> None:
        """Hear that a query never began, or that what it has used is counted now."""
        self._promised[owner] -= promised

    def learn(self, owner: str, used: int) -> None:
        """Hear what a query came to."""
        typical = self._typical.get(owner, used)
        self._typical[owner] = typical + _WEIGHT * (used - typical)
