"""A move batch: the moves that one plan or one delivery takes to an instance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from math import inf

from msgspec.structs import replace

from cachectl.nodes.node import Copy, NodeCache
from protocol.kv import Move, Pages
from protocol.tiers import Tier


class MoveBatch:
    """Moves that an ``instance`` carries out in this order; any instance at their location if it is empty.

    ``writes`` are the copies in shared tiers that come into being with them. Moves ``ahead`` of a request's turn evict
    nothing that any waiting request needs.
    """

    def __init__(self, instance: str, ahead: bool = False) -> None:
        self.instance = instance
        self.ahead = ahead
        self.moves: list[Move] = []
        self.writes: list[Copy] = []


class PendingMoves:
    """Moves in the order of their decisions, each for one instance or, on shared tiers, for any at their place.

    The place of a move is the location, or the disk, that its source belongs to.

    A plan that may never have carried out its moves gives them back. They go in front, as they were decided before all
    later ones. The tree may have changed its mind meanwhile, so ``take`` returns what still holds: a copy is made if
    the tree has it, and freed if it has not. A check, a move from a shared tier to itself, is needed until the copy is
    confirmed. ``copy_at(node, tier, owner)`` is the tree's copy of a node, named by its key in hexadecimal.
    """

    def __init__(self, copy_at: Callable[[str, Tier, str], Copy | None]) -> None:
        self._copy_at = copy_at
        # With the number of the request whose plan gave the move back, and the instance that it is for.
        self._moves: dict[Move, tuple[float, str | None]] = {}
        # How many moves free a node's copy in a cache, by node, tier and owner: ``frees`` asks for single ones.
        self._leaving: dict[tuple[str, Tier, str], int] = {}

    def __len__(self) -> int:
        return len(self._moves)

    def __iter__(self) -> Iterator[Move]:
        """All pending moves, in order."""
        return iter(sorted(self._moves, key=lambda move: self._moves[move][0]))

    def add(self, move: Move, instance: str | None) -> None:
        """Add a move for an instance, or for any. A move that is pending already is not added."""
        if move not in self._moves:
            self._put(move, inf, instance)

    def add_all(self, batch: MoveBatch) -> None:
        """Add a batch's moves for its instance."""
        for move in batch.moves:
            self.add(move, batch.instance or None)

    def give_back(self, moves: Sequence[Move], instance: str, tick: float) -> None:
        """Put moves back that an instance took with request number ``tick``, or after it.

        It may have them in its queue still. Any instance may free host memory, as no stamp is used twice.
        """
        for move in moves:
            anyone = move.source is Tier.HOST and move.target is None
            self._put(move, tick, None if anyone else instance)

    def take(self, batch: MoveBatch, places: Collection[str]) -> None:
        """Take all moves that a batch's instance can carry out: those that still hold, in order, with what they write.

        These are its own, and those that any instance at its ``places`` can carry out.
        """
        instance = batch.instance
        current: list[Move] = []
        # A node that a later move copies on from host memory has to come there first, though not to stay.
        passing: set[tuple[str, Pages | None]] = set()
        for move in reversed([move for move in self if self._is_for(instance, places, move)]):
            self.void(move)
            frees = move.evict and self._is_free(move)
            copy = self.target(move)
            checks = move.source is move.target
            if copy is not None and copy.writer is not None:
                if not checks:
                    copy.writer = instance
                batch.writes.append(copy)
            elif checks:
                continue
            if copy is not None or (move.target is Tier.HOST and (move.node, move.pages) in passing):
                current.append(move if frees == move.evict else replace(move, evict=False))
                if move.source is Tier.HOST:
                    passing.add((move.node, move.pages))
            elif frees:
                current.append(replace(move, target=None, pages=move.pages if move.source is Tier.HOST else None))
        current.reverse()
        batch.moves += current

    def lose(self, instance: str) -> list[Move]:
        """Void the moves of a removed instance's GPU, and return them. Others at its location may take the rest."""
        void = self._void_where(lambda move: move.instance == instance)
        for move, (tick, owner) in self._moves.items():
            if owner == instance:
                self._moves[move] = tick, None
                copy = self.target(move)
                if copy is not None and copy.writer is not None:
                    copy.cache.pass_on(copy, "")
        return void

    def waits_for(self, instance: str, places: Collection[str], checks: bool = True) -> bool:
        """Whether an instance has anything to take; without ``checks``, anything else than checks of its own copies."""
        return any(
            self._is_for(instance, places, move) and (checks or owner is None or move.source is not move.target)
            for move, (_, owner) in self._moves.items()
        )

    def owner(self, move: Move) -> str | None:
        """The instance that a pending move is for; None if any at its location can take it, or if it is not pending."""
        waiting = self._moves.get(move)
        return waiting[1] if waiting is not None else None

    def lose_place(self, place: str) -> list[Move]:
        """Void the moves of a place that is gone, and return them."""
        return self._void_where(lambda move: move.location == place)

    def _void_where(self, gone: Callable[[Move], bool]) -> list[Move]:
        void = [move for move in self if gone(move)]
        for move in void:
            self.void(move)
        return void

    def frees(self, node: str, cache: NodeCache) -> bool:
        """Whether a pending move frees a node's copy in a cache."""
        return (node, cache.tier, cache.owner) in self._leaving

    def target(self, move: Move) -> Copy | None:
        """The copy that a move makes, if the tree still has it."""
        copy = self._copy_at(move.node, move.target, _owner(move, move.target)) if move.target is not None else None
        if copy is None or not copy.held or copy.node.detached:
            return None
        return copy if move.target is not Tier.HOST or copy.pages == move.pages else None

    def _is_for(self, instance: str, places: Collection[str], move: Move) -> bool:
        owner = self._moves[move][1]
        return owner == instance or (owner is None and move.location in places)

    def _is_free(self, move: Move) -> bool:
        """Whether the tree has no copy where a move frees one; a new copy may have come there since."""
        copy = self._copy_at(move.node, move.source, _owner(move, move.source))
        return copy is None or (move.source is Tier.HOST and copy.pages != move.pages)

    def _put(self, move: Move, tick: float, instance: str | None) -> None:
        if move not in self._moves and move.evict:
            freed = move.node, move.source, _owner(move, move.source)
            self._leaving[freed] = self._leaving.get(freed, 0) + 1
        self._moves[move] = tick, instance

    def void(self, move: Move) -> None:
        """Take out a pending move that nobody is to carry out, or that is taken."""
        del self._moves[move]
        if move.evict:
            freed = move.node, move.source, _owner(move, move.source)
            self._leaving[freed] -= 1
            if not self._leaving[freed]:
                del self._leaving[freed]


def drop(key: bytes, tokens: int, cache: NodeCache, pages: Pages | None) -> Move:
    """The move that drops a node's KV from a cache."""
    return Move(key.hex(), tokens, cache.tier, None, cache.instance, pages=pages, location=cache.location)


def check(copy: Copy) -> Move:
    """The move that looks for a copy."""
    node, tier = copy.node, copy.cache.tier
    return Move(node.key.hex(), node.tokens, tier, tier, evict=False, pages=copy.pages, location=copy.cache.location)


def _owner(move: Move, tier: Tier) -> str:
    """The owner of the cache that a move touches in a tier."""
    return move.location if tier is not Tier.GPU or move.instance is None else move.instance
