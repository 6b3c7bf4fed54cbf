"""Copies that should be in a tier and are not."""

from collections.abc import Iterable

from protocol.kv import LostCopy
from protocol.tiers import Tier


class LostCopies:
    """Lost copies that have not been reported yet, each once, in the order of their loss."""

    def __init__(self) -> None:
        self._copies: dict[tuple[str, Tier], None] = {}

    def add(self, key: str, tier: Tier) -> None:
        """Record that a tier has no copy of the node ``key``."""
        self._copies[key, tier] = None

    def add_all(self, copies: Iterable[tuple[str, Tier]]) -> None:
        """Record several copies, as key and tier."""
        self._copies.update(dict.fromkeys(copies))

    def discard(self, key: str, tier: Tier) -> None:
        """Forget a loss, because the copy has been made again."""
        self._copies.pop((key, tier), None)

    def take(self) -> tuple[LostCopy, ...]:
        """The lost copies since the last call."""
        lost = tuple(LostCopy(key, tier) for key, tier in self._copies)
        self._copies.clear()
        return lost
