"""GDSF: Greedy-Dual-Size-Frequency, with a recomputation cost proportional to size.

Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy", HP Labs 1998. RAGCache
compares itself with it in section 7.3.
"""

from __future__ import annotations

from typing import ClassVar

from cachectl.nodes.node import Node, NodeCache
from cachectl.policies.base import ReplacementPolicy


class GreedyDualSizeFrequency(ReplacementPolicy):
    """Priority = Clock + Frequency · Cost / Size. Cost / Size is the same for every token, so it counts as 1."""

    name: ClassVar[str] = "GDSF"

    def priority(self, node: Node, cache: NodeCache) -> float:
        """Clock + Frequency."""
        return cache.clock + node.frequency
