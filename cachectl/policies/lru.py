"""LRU: the least recently used copy is evicted first."""

from __future__ import annotations

from typing import ClassVar

from cachectl.nodes.node import Node, NodeCache
from cachectl.policies.base import ReplacementPolicy


class LeastRecentlyUsed(ReplacementPolicy):
    """Priority = the number of the node's last request."""

    name: ClassVar[str] = "LRU"

    def priority(self, node: Node, cache: NodeCache) -> float:  # noqa: ARG002
        """The number of the request that used the node last."""
        return float(node.last_access)
