"""Replication: copies of nodes in slower tiers ahead of their eviction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cachectl.nodes.node import Copy, Node, NodeCache
from cachectl.tiers.pending_moves import MoveBatch
from cachectl.tiers.tier_cache import TierCache
from cachectl.tiers.tier_manager import TierManager
from protocol.kv import Move, Pages
from protocol.tiers import Tier

REPLICATED_USES = 32
"""A document at the top of the tree is copied to host memory once in this number of uses, if it has no copy there."""


class Replication:
    """Copies nodes to slower tiers that have room for them."""

    def __init__(self, tiers: TierManager) -> None:
        self._tiers = tiers

    def replicate(self, node: Node, batch: MoveBatch) -> None:
        """Copy a node from an instance's GPU to host memory if it is pinned, or used often at the top of the tree.

        A lost instance then costs no recomputation (RAGCache, section 6).
        """
        if node.pins or (node.accesses % REPLICATED_USES == 0 and _at_the_top(node)):
            self._copy_down(node, self._tiers.location_of(batch.instance).host, batch)

    def write_through(self, nodes: Sequence[Node], instance: str) -> None:
        """Copy nodes from an instance's GPU to every slower tier with room. The moves are pending."""
        batch = MoveBatch(instance)
        location = self._tiers.location_of(instance)
        for node in nodes:
            for cache in (location.host, location.disk):
                self._copy_down(node, cache, batch)
        self._tiers.pending_moves.add_all(batch)

    def persist(self, nodes: Iterable[Node]) -> None:
        """Copy nodes, parents first, to each disk from any tier in front of it, if there is room.

        The moves are pending.
        """
        for node in nodes:
            for disk in self._tiers.disks.values():
                if node.copy_in(disk) is None:
                    self._persist(node, disk)

    def _persist(self, node: Node, disk: TierCache) -> None:
        source = next((copy for copy in node.copies if copy.held and self._reaches(copy, disk)), None)
        if source is None:
            return
        # A copy that an instance is still writing is copied by that instance, after the write.
        batch = MoveBatch(source.writer or source.cache.instance or "")
        if self._tiers.eviction.make_room_beneath(node, disk, batch):
            disk.write(node, batch)
            batch.moves.append(_copying(node, source.cache, Tier.DISK, source.pages))
        self._tiers.pending_moves.add_all(batch)

    def _reaches(self, copy: Copy, disk: TierCache) -> bool:
        cache = copy.cache
        return cache.reaches(disk) and cache.instance not in self._tiers.retired

    def _copy_down(self, node: Node, cache: TierCache, batch: MoveBatch) -> None:
        gpu = self._tiers.gpu(batch.instance)
        copy = node.copy_in(gpu)
        if copy is None or not copy.held or node.copy_in(cache) is not None:
            return
        if self._tiers.eviction.make_room(node, cache, (), batch):
            batch.moves.append(_copying(node, gpu, cache.tier, cache.write(node, batch).pages))


def _copying(node: Node, source: NodeCache, target: Tier, pages: Pages | None) -> Move:
    """The move that copies a node to a slower tier, and leaves it where it is."""
    return Move(node.key.hex(), node.tokens, source.tier, target, source.instance, False, pages, source.location)


def _at_the_top(node: Node) -> bool:
    """Whether a node comes right after the root, or right after the pinned system prompt."""
    return node.parent is not None and (node.parent.parent is None or node.parent.pins > 0)
