"""What a controller remembers across its own death: who used what, what is pinned, and what was deleted.

What the tiers hold they say themselves. How often it was used, and what to make of late queries, only the controller
knew; so it has that kept elsewhere, in records of single nodes that change little from one time to the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cachectl.tree.knowledge_tree import KnowledgeTree
    from cachectl.tree.node import Node


class NodeRecord(msgspec.Struct, frozen=True):
    """A node of the tree: what it was to the policies, how often it is pinned itself, and where its copies lie.

    ``caches`` are ``gpu@<instance>``, and ``host@`` and ``disk@`` with the name of what instances share: the directory
    of who holds what. ``last_access`` is the number of the last request that used it.
    """

    namespace: str
    path: tuple[str, ...]
    tokens: int
    caches: tuple[str, ...]
    accesses: int
    last_access: int
    average_cost: float
    pinned: int = 0


class DeletionRecord(msgspec.Struct, frozen=True):
    """A deleted document: its content, in one namespace or, if None, in all, and when, in seconds since the epoch."""

    content: str
    namespace: str | None
    at: float


class Snapshot(msgspec.Struct, frozen=True):
    """All that is kept: nodes by their keys in hexadecimal, and deletions of which late queries may not know.

    ``tick`` is the number of the last request.
    """

    tick: int = 0
    nodes: dict[str, NodeRecord] = {}
    deletions: tuple[DeletionRecord, ...] = ()


EMPTY_SNAPSHOT = Snapshot()


def snapshot_nodes(tree: KnowledgeTree, nodes: Iterable[Node], shared: str) -> dict[str, NodeRecord]:
    """The records of some nodes, those that the tree has still; ``shared`` names what instances share."""
    return {node.key.hex(): _record(node, shared) for node in nodes if tree.nodes.get(node.key) is node}


def _record(node: Node, shared: str) -> NodeRecord:
    path = node.path
    return NodeRecord(
        node.root.content,
        tuple([above.content for above in path]),
        node.tokens,
        tuple([f"{cache.tier}@{cache.instance or shared}" for cache, copy in node.copies.items() if copy.held]),
        node.accesses,
        node.last_access,
        node.average_cost,
        node.pins - sum([child.pins for child in node.children.values()]),
    )


class StateStore(Protocol):
    """Where recollections are kept. Its calls never raise: what cannot be kept or found now is lost, or comes later.

    For one that never ``keeps`` anything, nothing need be recollected.
    """

    @property
    def keeps(self) -> bool:
        """Whether it ever keeps anything."""

    async def load(self) -> Snapshot:
        """What was kept last; nothing where it cannot be had."""

    async def keep(self, before: Snapshot, now: Snapshot) -> bool:
        """Make what is kept ``now`` of what was kept ``before``; False where it may be neither."""


class NoStore:
    """A store that keeps nothing."""

    keeps = False

    async def load(self) -> Snapshot:
        """Nothing."""
        return Snapshot()

    async def keep(self, before: Snapshot, now: Snapshot) -> bool:  # noqa: ARG002
        """Keep nothing."""
        return True
