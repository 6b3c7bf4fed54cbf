"""Copies that should be in a tier and are not."""

from collections.abc import Iterable

from protocol.kv import LostCopy
from protocol.tiers import Tier


class LostCopies:
    """Lost copies that have not been reported yet, each once, in the order of their loss."""

    def __init__(self) -> None:
        self._copies: dict[LostCopy, None] = {}

    def add(self, key: str, tier: Tier) -> None:
        """Record that a tier has no copy of the node ``key``."""
        self._copies[LostCopy(key, tier)] = None

    def add_all(self, copies: Iterable[LostCopy]) -> None:
        """Record several copies."""
        self._copies.update(dict.fromkeys(copies))

    def discard(self, key: str, tier: Tier) -> None:
        """Forget a loss, because the copy has been made again."""
        self._copies.pop(LostCopy(key, tier), None)

    def take(self) -> tuple[LostCopy, ...]:
        """The lost copies since the last call."""
        lost = tuple(self._copies)
        self._copies.clear()
        return lost
