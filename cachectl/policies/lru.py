"""LRU: the least recently used leaves first."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from cachectl.policies.base import ReplacementPolicy

if TYPE_CHECKING:
    from cachectl.tree.node import Node, NodeCache


class LeastRecentlyUsed(ReplacementPolicy):
    """Priority = the number of the request that used the node last."""

    name: ClassVar[str] = "LRU"

    def priority(self, node: Node, cache: NodeCache) -> float:  # noqa: ARG002
        """The request's number."""
        return float(node.last_access)
