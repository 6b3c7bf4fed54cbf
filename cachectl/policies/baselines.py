"""The baselines: policies of the literature, and the null policy."""

from __future__ import annotations

from typing import ClassVar

from cachectl.nodes.node import Node, NodeCache
from cachectl.policies.base import ReplacementPolicy


class NoCache(ReplacementPolicy):
    """NONE: keeps nothing. Its tree has no room, so it never ranks a node."""

    name: ClassVar[str] = "NONE"
    keeps: ClassVar[bool] = False

    def priority(self, node: Node, cache: NodeCache) -> float:  # noqa: ARG002
        """Always 0."""
        return 0.0


class LeastRecentlyUsed(ReplacementPolicy):
    """LRU: priority = the number of the node's last request."""

    name: ClassVar[str] = "LRU"

    def priority(self, node: Node, cache: NodeCache) -> float:  # noqa: ARG002
        """The number of the request that used the node last."""
        return float(node.last_access)


class GreedyDualSizeFrequency(ReplacementPolicy):
    """GDSF: priority = Clock + Frequency · Cost / Size. Cost / Size is the same for every token, so it counts as 1.

    Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy", HP Labs 1998.
    RAGCache compares itself with it in section 7.3.
    """

    name: ClassVar[str] = "GDSF"

    def priority(self, node: Node, cache: NodeCache) -> float:
        """Clock + Frequency."""
        return cache.clock + node.frequency


class PrefixAwareGreedyDual(ReplacementPolicy):
    """PGDSF: priority = Clock + AvgCost · Frequency (RAGCache, section 5.1, eq. 1-3 and Algorithm 1).

    AvgCost = 1/m · Σ T(αᵢ, βᵢ)/βᵢ over the m requests that did not find the node cached, each with αᵢ cached and βᵢ
    computed tokens. It stands in for Cost/Size of eq. 1, because a document's cost depends on the tokens before it. If
    a copy takes up more or less room than its tokens, AvgCost is that of the room (``Node.cost_by_room``). The Clock is
    the tier cache's own: the greatest priority that it has evicted.
    """

    name: ClassVar[str] = "PGDSF"

    def priority(self, node: Node, cache: NodeCache) -> float:
        """Clock + AvgCost · Frequency."""
        return cache.clock + node.cost_by_room * node.frequency
