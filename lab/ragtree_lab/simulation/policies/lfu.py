"""LFU: the least frequently used copy is evicted first."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from cachectl.policies.base import ReplacementPolicy

if TYPE_CHECKING:
    from cachectl.nodes.node import Node, NodeCache


class LeastFrequentlyUsed(ReplacementPolicy):
    """Priority = the node's frequency. Among equals, the least recently used is evicted first."""

    name: ClassVar[str] = "LFU"

    def priority(self, node: Node, cache: NodeCache) -> float:  # noqa: ARG002
        """The node's frequency."""
        return node.frequency
