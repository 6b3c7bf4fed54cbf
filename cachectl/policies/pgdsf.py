"""PGDSF: prefix-aware Greedy-Dual-Size-Frequency (RAGCache, section 5.1, eq. 1-3 and Algorithm 1)."""

from __future__ import annotations

from typing import ClassVar

from cachectl.nodes.node import Node, NodeCache
from cachectl.policies.base import ReplacementPolicy


class PrefixAwareGreedyDual(ReplacementPolicy):
    """Priority = Clock + AvgCost · Frequency.

    AvgCost = 1/m · Σ T(αᵢ, βᵢ)/βᵢ over the m requests that did not find the node cached, each with αᵢ cached and βᵢ
    computed tokens. It stands in for Cost/Size of eq. 1, because a document's cost depends on the tokens before it. The
    Clock is the tier cache's own: the greatest priority that it has evicted.
    """

    name: ClassVar[str] = "PGDSF"

    def priority(self, node: Node, cache: NodeCache) -> float:
        """Clock + AvgCost · Frequency."""
        return cache.clock + node.average_cost * node.frequency
