"""A tier that is disabled."""

from contextlib import AbstractContextManager

from generator.tiers.base import KvMissing, KvTier, PageReader, PageWriter, StoredNode, TierFull
from protocol.kv import KvNode, Pages
from protocol.tiers import Tier


class NullTier(KvTier):
    """A tier without capacity: it is always empty and refuses every copy."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier

    def has(self, key: str, pages: Pages | None) -> bool:  # noqa: ARG002
        """Always False."""
        return False

    def reading(self, key: str, pages: Pages | None) -> AbstractContextManager[PageReader]:  # noqa: ARG002
        """Raise KvMissing."""
        raise KvMissing(f"{key} cannot be read: there is no {self.tier} tier")

    def writing(self, node: KvNode, pages: Pages | None) -> AbstractContextManager[PageWriter]:  # noqa: ARG002
        """Raise TierFull."""
        raise TierFull(f"{node.key} cannot be written: there is no {self.tier} tier")

    def drop(self, key: str, pages: Pages | None) -> None:
        """Do nothing."""

    def nodes(self) -> list[StoredNode]:
        """An empty list."""
        return []

    def close(self) -> None:
        """Do nothing."""
