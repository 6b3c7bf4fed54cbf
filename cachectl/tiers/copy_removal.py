"""Removal of copies, with the copies that lose their support."""

from __future__ import annotations

from collections.abc import Callable, Container

from cachectl.nodes.node import Copy, Node
from cachectl.tiers.move_batch import MoveBatch
from cachectl.tiers.pending_moves import PendingMoves, drop
from cachectl.tiers.support_rule import unsupported_below


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
