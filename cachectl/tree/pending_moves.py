"""Orders that wait for somebody to carry them out: an instance's next plan, or a delivery of their own."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from msgspec.structs import replace

from protocol.tiers import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cachectl.tree.tier_cache import Copy
    from protocol.kv import Move, Pages


class PendingMoves:
    """Orders in the order in which they were decided, each for one instance or, on shared tiers, for any.

    What a plan took along and may never have carried out comes back, and goes in front: it was decided before all that
    came in since. Meanwhile the tree may have changed its mind, so what is taken is what is still meant: a copy is made
    where the tree believes in one, and freed where it has none. ``copy_at(node, tier, instance)`` is what the tree has
    of a node, by its key in hexadecimal.
    """

    def __init__(self, copy_at: Callable[[str, Tier, str | None], Copy | None]) -> None:
        self._copy_at = copy_at
        # With the number of the plan that brought it back, and whose it is.
        self._orders: dict[Move, tuple[float, str | None]] = {}
        # How many orders free a node's copy in a cache: they are asked for one by one.
        self._leaving: dict[tuple[str, Tier, str | None], int] = {}

    def __len__(self) -> int:
        return len(self._orders)

    def __iter__(self) -> Iterator[Move]:
        """All that waits, in order."""
        return iter(sorted(self._orders, key=lambda move: self._orders[move][0]))

    def add(self, move: Move, instance: str | None) -> None:
        """Let an order wait for an instance, or for any; one that waits already is not added."""
        if move not in self._orders:
            self._put(move, inf, instance)

    def give_back(self, moves: Sequence[Move], instance: str, tick: float) -> None:
        """Let orders wait again that request number ``tick``, or somebody behind it, took along for an instance."""
        for move in moves:
            anyone = move.instance is None and move.target is None
            self._put(move, tick, None if anyone else instance)

    def take(self, instance: str, shared: bool = True) -> list[Move]:
        """Take out all that an instance can carry out; those that are still meant, in order.

        What any instance may do is among it where this one reaches the ``shared`` tiers.
        """
        meant: list[Move] = []
        # What a later order copies on from host memory: it is to come there, though not to stay.
        passing: set[tuple[str, Pages | None]] = set()
        for order in reversed([move for move in self if self._is_for(instance, shared, self._orders[move][1])]):
            self._remove(order)
            frees = order.evict and self._is_free(order)
            if self.target(order) is not None or (order.target is Tier.HOST and (order.node, order.pages) in passing):
                meant.append(order if frees == order.evict else replace(order, evict=False))
                if order.source is Tier.HOST:
                    passing.add((order.node, order.pages))
            elif frees:
                meant.append(replace(order, target=None, pages=order.pages if order.source is Tier.HOST else None))
        meant.reverse()
        return meant

    def lose(self, instance: str) -> list[Move]:
        """Hear that an instance is gone: the orders about its GPU are void, and returned. The rest anyone may take."""
        void = [move for move in self if move.instance == instance]
        for move in void:
            self._remove(move)
        for move, (tick, whose) in self._orders.items():
            if whose == instance:
                self._orders[move] = tick, None
        return void

    def waits_for(self, instance: str, shared: bool = True) -> bool:
        """Whether an instance has anything to take."""
        return any(self._is_for(instance, shared, whose) for _, whose in self._orders.values())

    def lose_shared(self) -> None:
        """Hear that the shared tiers are others now: orders that touch none but them are void."""
        for move in [move for move in self if move.instance is None]:
            self._remove(move)

    def frees(self, node: str, tier: Tier, instance: str | None) -> bool:
        """Whether an order waits that frees a node's copy in a cache."""
        return (node, tier, instance) in self._leaving

    def target(self, order: Move) -> Copy | None:
        """The copy that an order makes, if the tree still believes in it."""
        copy = self._copy_at(order.node, order.target, order.instance) if order.target is not None else None
        if copy is None or not copy.held or copy.node.detached:
            return None
        return copy if order.target is not Tier.HOST or copy.pages == order.pages else None

    @staticmethod
    def _is_for(instance: str, shared: bool, whose: str | None) -> bool:
        return whose == instance or (shared and whose is None)

    def _is_free(self, order: Move) -> bool:
        """Whether the tree has nothing, not any more and not again, where an order frees a node's copy."""
        copy = self._copy_at(order.node, order.source, order.instance)
        return copy is None or (order.source is Tier.HOST and copy.pages != order.pages)

    def _put(self, move: Move, tick: float, instance: str | None) -> None:
        if move not in self._orders and move.evict:
            what = move.node, move.source, move.instance
            self._leaving[what] = self._leaving.get(what, 0) + 1
        self._orders[move] = tick, instance

    def _remove(self, move: Move) -> None:
        del self._orders[move]
        if move.evict:
            what = move.node, move.source, move.instance
            self._leaving[what] -= 1
            if not self._leaving[what]:
                del self._leaving[what]
