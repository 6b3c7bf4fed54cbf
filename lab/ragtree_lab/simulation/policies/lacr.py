"""LACR: lookahead-aware cache replacement (DepCache, eq. 6), in the paper's form and with a bounded count."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from cachectl.policies.base import ReplacementPolicy

if TYPE_CHECKING:
    from cachectl.nodes.node import Copy, Node, NodeCache
    from cachectl.policies.lookahead import Lookahead

ALPHA = 0.2
"""The weight of past frequency. What the queue needs has the rest."""


class LookaheadAware(ReplacementPolicy):
    """Priority = α · frequency + (1 − α) · Σ 1/(1 + d) over the waiting requests that need the node, α = 0.2.

    d counts the requests ahead of the one that needs the node, so nearer requests weigh more.
    """

    name: ClassVar[str] = "LACR"

    def priority(self, node: Node, cache: NodeCache) -> float:  # noqa: ARG002
        """The part that changes only at accesses."""
        return ALPHA * node.frequency

    def current(self, copy: Copy) -> float:
        """That part, plus what the queue needs at this moment."""
        return copy.priority + (1 - ALPHA) * self._need(copy)

    def _need(self, copy: Copy) -> float:
        """Σ 1/(1 + d) over the waiting requests that need the node."""
        return sum(1 / (1 + distance) for distance in self.lookahead.distances(copy.node.key))


class NormalisedLookaheadAware(LookaheadAware):
    """Priority = α · frequency / F + (1 − α) · Σ 1/(1 + d), where F is the greatest frequency of any node so far.

    LACR's count has no bound, so that after a while the past outweighs what the queue needs. Here the past weighs α at
    the most. Priorities are computed times F, which ranks alike: they then only rise while F grows, as the eviction
    order expects.
    """

    name: ClassVar[str] = "LACR-NORMALISED"

    def __init__(self, lookahead: Lookahead) -> None:
        super().__init__(lookahead)
        self._greatest = 1.0

    def priority(self, node: Node, cache: NodeCache) -> float:
        """The part that changes only at accesses, times F."""
        self._greatest = max(self._greatest, node.frequency)
        return super().priority(node, cache)

    def current(self, copy: Copy) -> float:
        """That part, plus what the queue needs at this moment, times F."""
        return copy.priority + self._greatest * (1 - ALPHA) * self._need(copy)
