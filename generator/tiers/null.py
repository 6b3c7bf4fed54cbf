"""A tier that is switched off."""

from contextlib import AbstractContextManager

from generator.tiers.base import KvMissing, PageReader, PageWriter, StoredNode, TierFull
from protocol.kv import KvNode, Pages
from protocol.tiers import Tier


class NullTier:
    """A ``KvTier`` without any room: it has nothing, and takes nothing."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier

    def has(self, key: str, pages: Pages | None) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def reading(self, key: str, pages: Pages | None) -> AbstractContextManager[PageReader]:  # noqa: ARG002
        """Raises KvMissing."""
        raise KvMissing(f"{key}: there is no {self.tier} tier")

    def writing(self, node: KvNode, pages: Pages | None) -> AbstractContextManager[PageWriter]:  # noqa: ARG002
        """Raises TierFull."""
        raise TierFull(f"{node.key}: there is no {self.tier} tier")

    def drop(self, key: str, pages: Pages | None) -> None:
        """Nothing to do."""

    def nodes(self) -> list[StoredNode]:
        """None."""
        return []

    @property
    def used_bytes(self) -> int:
        """None."""
        return 0

    def check_integrity(self) -> None:
        """Nothing that could be untrue."""

    def close(self) -> None:
        """Nothing to let go of."""
