"""The support rule: a copy lies where its parent's copy is, or in a slower shared tier that this one is swapped to.

A prefix is useful only from its start, so KV whose parent is out of reach is of no use.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from cachectl.nodes.node import Copy, Node, NodeCache
from cachectl.tiers.pending_moves import MoveBatch, PendingMoves, drop


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

    The writer of a copy that is not confirmed drops it, behind the write. ``instances`` are those that exist.
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
        plans up to that request are complete. ``unused`` says that no plan uses this copy, whatever locks its node.
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
