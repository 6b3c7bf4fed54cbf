"""Eviction: makes room by swapping out copies of lower priority, and removes copies with all that they support.

A copy lies where its parent's copy is, or in a slower shared tier that this one is swapped to: a prefix is useful only
from its start, so KV whose parent is out of reach is of no use.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from cachectl.nodes.node import Copy, Node, NodeCache
from cachectl.policies.base import ReplacementPolicy
from cachectl.tiers.pending_moves import MoveBatch, PendingMoves, drop
from cachectl.tiers.tier_cache import TierCache
from protocol.kv import Move
from protocol.tiers import Tier


def is_supported(parent: Node | None, cache: NodeCache, reserved: Sequence[Copy]) -> bool:
    """Whether a child of ``parent`` may lie in a cache. ``reserved`` copies of the same plan count as held."""
    if parent is None or parent.parent is None:
        return True
    there = parent.copy_in(cache)
    if there is not None and there.held:
        return True
    return any((copy.held or copy in reserved) and copy.cache.reaches(cache) for copy in parent.copies)


def unsupported_below(node: Node) -> list[Copy]:
    """Copies of a node's children that lost their support."""
    orphans: list[Copy] = []
    if node.parent is None:
        return orphans
    for cache in node.below:
        if any(copy.cache.reaches(cache) and copy.held for copy in node.copies):
            continue
        below = [copy for child in node.children if (copy := child.copy_in(cache)) is not None]
        promised = any(copy.cache.reaches(cache) and not copy.condemned for copy in node.copies)
        orphans += [copy for copy in below if not copy.condemned and (copy.held or not promised)]
    return orphans


class CopyRemoval:
    """Removes copies, and has engines drop their KV.

    The writer of a copy that is not confirmed drops it, after the write. ``instances`` are those that exist.
    ``forget`` is called with each node that lost its last copy.
    """

    def __init__(self, pending_moves: PendingMoves, instances: Container[str], forget: Callable[[Node], None]) -> None:
        self._pending_moves = pending_moves
        self._instances = instances
        self._forget = forget

    def discard(
        self, copy: Copy, tick: int, batch: MoveBatch | None = None, unused: bool = False, gone: bool = False
    ) -> None:
        """Remove a copy and all copies that only it supports. Drops go into ``batch``, or wait as pending moves.

        A copy that a plan uses is condemned: it is not found after request number ``tick``, and is removed when the
        plans up to that request are complete. ``unused`` says that no plan uses this copy, even if its node is locked.
        ``gone`` says that its KV is not there, so nothing needs to be dropped.
        """
        doomed = [copy]
        emptied: list[Node] = []
        while doomed:
            going = doomed.pop()
            node = going.node
            free = not node.locks or (unused and going is copy)
            if node.copy_in(going.cache) is not going or (going.condemned and not free):
                continue
            if not free:
                going.cache.withdraw(going)
                going.condemned = tick
                going.users = node.locks
                going.held = False
                going.absent = gone and going is copy
            else:
                self._remove(going, going.held and not (gone and going is copy), batch)
            doomed += unsupported_below(node)
            if not node.copies:
                emptied.append(node)
        # Children first: a node that is forgotten with children deletes them.
        for node in reversed(emptied):
            self._forget(node)

    def remove_unused(self, copy: Copy) -> None:
        """Remove a condemned copy, or a copy of a deleted node, that no plan uses any more."""
        # Only the plans know whether its KV ever arrived. Dropping nothing does no harm.
        self._remove(copy, not copy.absent, None)
        if not copy.node.copies:
            self._forget(copy.node)

    def _remove(self, copy: Copy, present: bool, batch: MoveBatch | None) -> None:
        cache, writer = copy.cache, copy.writer
        pages = cache.remove(copy)
        if not present:
            return
        move = drop(copy.node.key, copy.node.tokens, cache, pages)
        if writer is not None and writer not in self._instances:
            writer = None
        if batch is not None and writer in (None, batch.instance):
            batch.moves.append(move)
        else:
            self._pending_moves.add(move, writer or cache.instance)


class Eviction:
    """Makes room in tier caches. Each eviction becomes a ``Move``, which engines carry out.

    A node is swapped out once: one that a slower tier holds already leaves the faster tier without a copy. So does one
    that another location ``serves`` to the instance: machines that share need not all keep the same nodes.
    ``may_delete(node, disk, instance)`` is that of ``MovesUnderWay``. ``forget`` is called with each node that lost its
    last copy.
    """

    def __init__(
        self,
        policy: ReplacementPolicy,
        may_delete: Callable[[Node, NodeCache, str | None], bool],
        removal: CopyRemoval,
        forget: Callable[[Node], None],
        serves: Callable[[Node, TierCache], bool],
    ) -> None:
        self._policy = policy
        self._serves = serves
        self._may_delete = may_delete
        self._removal = removal
        self._forget = forget

    def make_room(self, node: Node, cache: TierCache, reserved: Sequence[Copy], batch: MoveBatch) -> bool:
        """Make room for a node in a cache; False if it is not supported there, or if its priority is too low.

        Also False for a file on disk that moves under way delete, and if other instances still write what would have to
        go. ``reserved`` are copies of the same plan, which support the node. ``batch`` receives the evictions.
        """
        if not cache.capacity or not is_supported(node.parent, cache, reserved):
            return False
        if cache.tier is Tier.DISK and self._may_delete(node, cache, batch.instance):
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
        # The nodes after it in slower caches need it there.
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
