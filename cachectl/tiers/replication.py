"""Replication: copies of nodes in slower tiers ahead of their eviction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachectl.tiers.move_batch import MoveBatch
from protocol.kv import Move
from protocol.tiers import Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cachectl.nodes.node import Copy, Node
    from cachectl.tiers.tier_cache import TierCache
    from cachectl.tiers.tier_manager import TierManager

REPLICATED_USES = 32
"""A document at the top of the tree is copied to host memory at every so many uses, if it has no copy there."""


class Replication:
    """Copies nodes to slower tiers that have room for them."""

    def __init__(self, tiers: TierManager) -> None:
        self._tiers = tiers

    def replicate(self, node: Node, batch: MoveBatch) -> None:
        """Copy a node from an instance's GPU to host memory if it is pinned, or used often at the top of the tree.

        A lost instance then costs no recomputation (RAGCache, section 6).
        """
        if self._tiers.isolated(batch.instance):
            return
        if node.pins or (node.accesses % REPLICATED_USES == 0 and _at_the_top(node)):
            self._copy_down(node, self._tiers.host, batch)

    def write_through(self, nodes: Sequence[Node], instance: str) -> None:
        """Copy nodes from an instance's GPU to every slower tier with room. The moves are pending."""
        if self._tiers.isolated(instance):
            return
        batch = MoveBatch(instance)
        for node in nodes:
            for cache in (self._tiers.host, self._tiers.disk):
                self._copy_down(node, cache, batch)
        self._tiers.pending_moves.add_all(batch)

    def persist(self, nodes: Iterable[Node]) -> None:
        """Copy nodes, parents first, to disk from any tier that holds them, if there is room. The moves are pending."""
        disk = self._tiers.disk
        for node in nodes:
            source = next((copy for copy in node.copies.values() if copy.held and self._reaches_disk(copy)), None)
            if source is None or disk in node.copies:
                continue
            # What an instance is still writing is copied by that instance, behind the write.
            batch = MoveBatch(source.writer or source.cache.instance or "")
            if self._tiers.eviction.make_room_beneath(node, disk, batch):
                disk.write(node, batch)
                cache, key = source.cache, node.key.hex()
                batch.moves.append(Move(key, node.tokens, cache.tier, Tier.DISK, cache.instance, False, source.pages))
            self._tiers.pending_moves.add_all(batch)

    def _reaches_disk(self, copy: Copy) -> bool:
        instance = copy.cache.instance
        return instance is None or not (self._tiers.isolated(instance) or instance in self._tiers.retired)

    def _copy_down(self, node: Node, cache: TierCache, batch: MoveBatch) -> None:
        copy = node.copies.get(self._tiers.gpu(batch.instance))
        if copy is None or not copy.held or cache in node.copies:
            return
        if self._tiers.eviction.make_room(node, cache, (), batch):
            pages = cache.write(node, batch).pages
            batch.moves.append(Move(node.key.hex(), node.tokens, Tier.GPU, cache.tier, batch.instance, False, pages))


def _at_the_top(node: Node) -> bool:
    """Whether a node stands right behind the root, or right behind the pinned system prompt."""
    return node.parent is not None and (node.parent.parent is None or node.parent.pins > 0)
