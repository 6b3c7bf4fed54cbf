"""Eviction: makes room for a node by swapping out copies of lower priority."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cachectl.nodes.node import Copy, Node
from cachectl.policies.base import ReplacementPolicy
from cachectl.tiers.copy_removal import CopyRemoval, is_supported, unsupported_below
from cachectl.tiers.moves_under_way import MovesUnderWay
from cachectl.tiers.pending_moves import MoveBatch
from cachectl.tiers.tier_cache import TierCache
from protocol.kv import Move
from protocol.tiers import Tier


class Eviction:
    """Makes room in tier caches. Each eviction becomes a ``Move``, which engines carry out.

    A node is swapped out once: one that a slower tier holds already leaves the faster tier without a copy. So does one
    that another location ``serves`` to the instance: machines that share need not all keep the same nodes. ``forget``
    is called with each node that lost its last copy.
    """

    def __init__(
        self,
        policy: ReplacementPolicy,
        under_way: MovesUnderWay,
        removal: CopyRemoval,
        forget: Callable[[Node], None],
        serves: Callable[[Node, TierCache], bool],
    ) -> None:
        self._policy = policy
        self._serves = serves
        self._under_way = under_way
        self._removal = removal
        self._forget = forget

    def make_room(self, node: Node, cache: TierCache, reserved: Sequence[Copy], batch: MoveBatch) -> bool:
        """Make room for a node in a cache; False if it is not supported there, or if its priority is too low.

        Also False for a file on disk that moves under way delete, and if other instances still write what would have to
        go. ``reserved`` are copies of the same plan, which support the node. ``batch`` receives the evictions.
        """
        if not cache.capacity or not is_supported(node.parent, cache, reserved):
            return False
        if cache.tier is Tier.DISK and self._under_way.may_delete(node, cache, batch.instance):
            return False
        if node.pins and not cache.may_pin(node.room):
            return False
        victims = cache.gather(node, self._policy.priority(node, cache), batch)
        if victims is None:
            return False
        for victim in victims:
            self._evict(victim, cache, batch)
        return True

    def make_room_beneath(self, node: Node, cache: TierCache, batch: MoveBatch) -> bool:
        """Make room for a node without evicting its parent."""
        parent = node.parent
        assert parent is not None
        parent.locks += 1
        made = self.make_room(node, cache, (), batch)
        parent.locks -= 1
        for copy in parent.copies:
            if not copy.ticket:
                copy.cache.offer(copy)
        return made

    def _evict(self, copy: Copy, cache: TierCache, batch: MoveBatch) -> None:
        """Evict a leaf: into the first slower cache that takes it, unless it is held there or elsewhere already."""
        node = copy.node
        cache.clock = max(cache.clock, copy.priority)
        cache.evictions += 1
        # What stands behind the node in slower caches needs it there.
        served = cache.instance is not None and self._serves(node, cache) and not node.below
        target = None if served else self._swap_out(node, cache.slower, batch)
        # At most one of the two tiers is host memory.
        pages = cache.remove(copy) or (target.pages if target is not None else None)
        tier = target.cache.tier if target is not None else None
        key = node.key.hex()
        batch.moves.append(
            Move(key, node.tokens, cache.tier, tier, cache.instance, pages=pages, location=cache.location)
        )
        for orphan in unsupported_below(node):
            self._removal.discard(orphan, 0, batch)
        if not node.copies:
            self._forget(node)

    def _swap_out(self, node: Node, cache: TierCache | None, batch: MoveBatch) -> Copy | None:
        """The node's new copy in a slower cache; None if it needs none, or no slower cache takes it."""
        while cache is not None and node.copy_in(cache) is None:
            if self.make_room_beneath(node, cache, batch):
                return cache.write(node, batch)
            cache = cache.slower
        return None
