"""Moves under way: what instances have taken and may not have carried out yet."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from cachectl.nodes.node import Copy, Node, NodeCache
from cachectl.tiers.eviction import CopyRemoval
from cachectl.tiers.pending_moves import MoveBatch, PendingMoves, check, drop
from protocol.kv import Move
from protocol.repeating import AttemptCounts
from protocol.tiers import Tier


class MovesUnderWay:
    """Batches of moves from the moment when an instance takes them until their outcome is known.

    A batch ends once: it is confirmed, in doubt, given back, or lost with its instance. Until then its copies in shared
    tiers have the instance as their ``writer``, and only that instance finds them; and what its moves delete from disk
    is not written again.

    Moves of shared tiers outlive an instance that is lost with them: another one takes them. A move that was lost with
    as many instances as there may be attempts is given up, since it may be what ends them; ``given_up`` counts those.
    Then any instance looks for what it was to write.
    """

    def __init__(self, pending: PendingMoves, removal: CopyRemoval) -> None:
        self._pending = pending
        self._removal = removal
        self._batches: dict[MoveBatch, None] = {}
        # The last batch that deletes a node's file, by key and location.
        self._deleting: dict[tuple[str, str], MoveBatch] = {}
        self._attempts: AttemptCounts[Move] = AttemptCounts()
        # Moves that instances have taken and given back: they may have tried them.
        self._given_back: dict[str, set[Move]] = {}
        self.given_up = 0

    def __iter__(self) -> Iterator[MoveBatch]:
        """The batches that have not ended."""
        return iter(self._batches)

    def begin(self, batch: MoveBatch) -> None:
        """Note that an instance has taken a batch."""
        if batch.moves or batch.writes:
            self._batches[batch] = None
            for move in batch.moves:
                if move.source is Tier.DISK and move.evict:
                    self._deleting[move.node, move.location] = batch

    def confirm(
        self, batch: MoveBatch, unwritten: Collection[tuple[bytes, Tier]], tick: int, alone: bool
    ) -> list[bytes]:
        """End a batch that is carried out; the keys of the nodes that all instances find now.

        ``unwritten`` are copies that could not be made, by node and tier. They are removed as of request ``tick``. An
        instance that is ``alone`` has found its own copies before, but none that a lost instance has left to it.
        """
        confirmed: list[bytes] = []
        if not self._end(batch):
            return confirmed
        self._succeeded(batch)
        for copy in batch.writes:
            node, cache = copy.node, copy.cache
            failed = bool(unwritten) and (node.key, cache.tier) in unwritten
            if node.copy_in(cache) is not copy:
                if not failed:
                    self._drop_late(copy, batch.instance)
            elif failed:
                # A write may fail after the file was published, so it is dropped too.
                self._removal.discard(copy, tick)
                copy.writer = None
            else:
                found_before = alone and copy.writer == batch.instance
                cache.pass_on(copy, None)
                if copy.held and not found_before:
                    confirmed.append(node.key)
        return confirmed

    def ask_for_copies(self, batch: MoveBatch) -> None:
        """End a batch that may still be carried out. Its instance is asked for the copies, after all its moves."""
        deleted = [move for move in batch.moves if self._deleting.get((move.node, move.location)) is batch]
        if self._end(batch):
            self._check(batch, batch.instance, set())
            for move in deleted:
                if move.source is Tier.DISK and move.evict:
                    self._pending.add(move, batch.instance)

    def give_back(self, batch: MoveBatch, tick: float) -> None:
        """End a batch that may never be carried out: its moves are pending again, as decided at request ``tick``."""
        if self._end(batch):
            self._pending.give_back(batch.moves, batch.instance, tick)
            self._given_back.setdefault(batch.instance, set()).update(batch.moves)
            for copy in batch.writes:
                if copy.node.copy_in(copy.cache) is not copy:
                    self._drop_late(copy, batch.instance)

    def give_moves_back(self, batch: MoveBatch, tick: float) -> None:
        """Make a batch's moves pending again although it goes on: its instance may get it too late to carry them out.

        Carrying them out twice does no harm.
        """
        if batch in self._batches:
            self._delete_no_more(batch)
            self._pending.give_back(batch.moves, batch.instance, tick)
            batch.moves = []

    def lose(self, instance: str) -> None:
        """End the batches of a removed instance. Others at its location take its moves, and look for its copies."""
        for move in self._given_back.pop(instance, ()):
            if move.instance is None and self._pending.owner(move) == instance and self._fails(move):
                self._pending.void(move)
                copy = self._pending.target(move)
                if copy is not None:
                    # Any instance looks for what the move was to make.
                    copy.cache.pass_on(copy, "")
                    self._pending.add(check(copy), None)
        for batch in [batch for batch in self._batches if batch.instance == instance]:
            self._end(batch)
            shared = [move for move in batch.moves if move.instance is None and not self._fails(move)]
            for move in shared:
                self._pending.add(move, None)
            self._check(batch, "", {(move.node, move.target) for move in shared})

    def may_delete(self, node: Node, disk: NodeCache, instance: str | None = None) -> bool:
        """Whether a node's file on a disk may be deleted after ``instance``, or any, has written it again.

        A batch may reach its instance later than the next one. Of pending moves, an instance's own and those for any
        are no danger: they are not taken once the file is wanted again.
        """
        if not self._deleting and not self._pending:
            return False
        key = node.key.hex()
        if (key, disk.location) in self._deleting:
            return True
        if not self._pending.frees(key, disk):
            return False
        return self._pending.owner(drop(node.key, node.tokens, disk, None)) not in (None, instance)

    def _fails(self, move: Move) -> bool:
        """Count that a move was lost with an instance. Whether that was the last attempt."""
        if move.source is move.target:
            # It only looks.
            return False
        self._attempts.count(move)
        if not self._attempts.exhausted(move):
            return False
        self._attempts.forget(move)
        self.given_up += 1
        return True

    def _succeeded(self, batch: MoveBatch) -> None:
        given_back = self._given_back.get(batch.instance)
        for move in batch.moves:
            self._attempts.forget(move)
            if given_back:
                given_back.discard(move)

    def _end(self, batch: MoveBatch) -> bool:
        """Take a batch out; False if it has ended before."""
        if batch not in self._batches:
            return False
        del self._batches[batch]
        self._delete_no_more(batch)
        return True

    def _delete_no_more(self, batch: MoveBatch) -> None:
        if self._deleting:
            for move in batch.moves:
                if self._deleting.get((move.node, move.location)) is batch:
                    del self._deleting[move.node, move.location]

    def _check(self, batch: MoveBatch, writer: str, repeated: set[tuple[str, Tier | None]]) -> None:
        """Have a writer, or any instance if it is empty, look for a batch's copies but for those that it makes again.

        ``repeated`` are the copies that pending moves make, by node and tier.
        """
        for copy in batch.writes:
            node, tier = copy.node, copy.cache.tier
            if node.copy_in(copy.cache) is not copy:
                self._drop_late(copy, writer)
            elif copy.writer is not None:
                if not writer:
                    copy.cache.pass_on(copy, "")
                if (node.key.hex(), tier) not in repeated:
                    self._pending.add(check(copy), writer or None)

    def _drop_late(self, copy: Copy, writer: str) -> None:
        """Have a file deleted that may be published although the tree gave up its copy meanwhile.

        Host memory needs no such order: its pages are free, whatever is in them.
        """
        if copy.cache.tier is Tier.DISK:
            self._pending.add(drop(copy.node.key, copy.node.tokens, copy.cache, None), writer or None)
