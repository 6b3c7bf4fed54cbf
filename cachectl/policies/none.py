"""NONE: keeps nothing. The baseline."""

from __future__ import annotations

from typing import ClassVar

from cachectl.nodes.node import Node, NodeCache
from cachectl.policies.base import ReplacementPolicy


class NoCache(ReplacementPolicy):
    """The null policy. Its tree has no room, so it never ranks a node."""

    name: ClassVar[str] = "NONE"
    keeps: ClassVar[bool] = False

    def priority(self, node: Node, cache: NodeCache) -> float:  # noqa: ARG002
        """Always 0."""
        return 0.0
