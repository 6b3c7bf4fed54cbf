"""LACR: lookahead-aware cache replacement (DepCache, eq. 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from cachectl.policies.base import ReplacementPolicy

if TYPE_CHECKING:
    from cachectl.nodes.node import Copy, Node, NodeCache

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
        distances = self.lookahead.distances(copy.node.key)
        return copy.priority + (1 - ALPHA) * sum(1 / (1 + distance) for distance in distances)
