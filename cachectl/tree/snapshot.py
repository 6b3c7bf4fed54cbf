"""Snapshots: what a controller saves for its successor.

The tiers report what they hold. How often it was used, what is pinned, and which documents were deleted, only the
controller knows. It saves that outside of its process, in records of single nodes, of which few change at a time.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from cachectl.nodes.node import Node
from protocol.generation import ServedAdapter
from protocol.retrieval import Revisions, StoreRevision


class NodeRecord(msgspec.Struct, frozen=True):
    """A node: its counts for the policies, its own pins, and where its confirmed copies are.

    ``caches`` are ``gpu@<instance>``, and ``host@`` and ``disk@`` with the name of the location or the disk. They are
    the directory of what is held where. ``last_access`` is the number of the last request that used the node.
    """

    namespace: str
    path: tuple[str, ...]
    tokens: int
    # Stores from before the rename have this name.
    caches: tuple[str, ...] = msgspec.field(name="places")
    accesses: int
    last_access: int
    average_cost: float
    pinned: int = 0


class DeletionRecord(msgspec.Struct, frozen=True):
    """A deleted content, its namespace (None: all), and the revision of the store that it is gone from.

    Snapshots of earlier versions have a time in its place, which says nothing of the order.
    """

    content: str
    namespace: str | None
    gone_at: StoreRevision | None = None


class Snapshot(msgspec.Struct, frozen=True):
    """Nodes by their keys in hexadecimal, and deletions that late queries may not know of.

    Of earlier deletions, only the highest revisions are known, which are ``forgotten``.

    ``tick`` is the number of the last request. ``places`` are the locations and disks that were known, ``added``
    the adapters that came while the instances ran, by name. None if that is not recorded.
    """

    tick: int = 0
    nodes: dict[str, NodeRecord] = {}
    deletions: tuple[DeletionRecord, ...] = ()
    places: tuple[str, ...] | None = None
    forgotten: Revisions = ()
    added: dict[str, ServedAdapter] | None = None


EMPTY_SNAPSHOT = Snapshot()


def record_of(node: Node) -> NodeRecord:
    """A node's record."""
    path = node.path
    caches = [f"{copy.cache.tier}@{copy.cache.owner}" for copy in node.copies if copy.confirmed]
    return NodeRecord(
        namespace=node.root.content,
        path=tuple([above.content for above in path]),
        tokens=node.tokens,
        caches=tuple(caches),
        accesses=node.accesses,
        last_access=node.last_access,
        average_cost=node.average_cost,
        pinned=node.pins - sum([child.pins for child in node.children]),
    )


class SnapshotStore(Protocol):
    """Where snapshots are saved. Its calls never raise: what cannot be saved or loaded now is lost, or comes later.

    A store that never ``keeps`` anything needs no snapshots.
    """

    @property
    def keeps(self) -> bool:
        """Whether it ever keeps anything."""

    async def load(self) -> Snapshot:
        """The last saved snapshot; an empty one if there is none or it cannot be loaded."""

    async def keep(self, before: Snapshot, now: Snapshot) -> bool:
        """Replace the snapshot ``before`` by ``now``; False if the store may hold neither."""


class NoStore:
    """A store that keeps nothing."""

    keeps = False

    async def load(self) -> Snapshot:
        """An empty snapshot."""
        return EMPTY_SNAPSHOT

    async def keep(self, before: Snapshot, now: Snapshot) -> bool:  # noqa: ARG002
        """Keep nothing."""
        return True
