"""NONE: nothing is kept. The baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from cachectl.policies.base import ReplacementPolicy

if TYPE_CHECKING:
    from cachectl.tree.node import Node, NodeCache


class NoCache(ReplacementPolicy):
    """The null policy: a tree under it has no room, so it never ranks a node."""

    name: ClassVar[str] = "NONE"
    keeps: ClassVar[bool] = False

    def priority(self, node: Node, cache: NodeCache) -> float:  # noqa: ARG002
        """Nothing is worth anything."""
        return 0.0
