"""The order in which copies leave a tier cache."""

from __future__ import annotations

from abc import ABC, abstractmethod

from mypy_extensions import mypyc_attr

from cachectl.nodes.node import Copy


# Compiled by scripts/compile. This attribute lets interpreted classes still derive from it.
@mypyc_attr(allow_interpreted_subclasses=True)
class EvictionOrder(ABC):
    """The copies of a tier cache that may be evicted.

    ``Copy.ticket`` belongs to the order. It is 0 for a copy that is not in it.
    """

    @abstractmethod
    def enter(self, copy: Copy) -> None:
        """Put a copy in."""

    @abstractmethod
    def void(self, copy: Copy) -> None:
        """Take a copy out, if it is in."""

    @abstractmethod
    def touch(self, copy: Copy) -> None:
        """Record that a copy is new, or that its node was accessed."""

    @abstractmethod
    def reconsider(self, copy: Copy) -> None:
        """Record that a copy's priority may have fallen without an access."""

    @abstractmethod
    def lowest(self) -> tuple[Copy, float] | None:
        """The copy to evict next, and its current priority. It stays in the order."""

    @abstractmethod
    def lowest_few(self, count: int) -> list[Copy]:
        """About ``count`` of the copies to evict next, lowest first. Approximate and cheap. They stay in the order."""
