"""HYBRID: a score of frequency and recency, as in three-tier document caches."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from cachectl.policies.base import ReplacementPolicy

if TYPE_CHECKING:
    from cachectl.nodes.node import Node, NodeCache

ALPHA = 0.6
"""The weight of frequency. Recency has the rest."""


class FrequencyRecency(ReplacementPolicy):
    """Priority = α · frequency + (1 − α) · recency, α = 0.6.

    Recency is the tier cache's age at the last access, in turnovers: tokens ever inserted, over the capacity. So a node
    loses one point while the cache is filled once. Differences between nodes stay the same over time, so a priority
    holds until the next access.
    """

    name: ClassVar[str] = "HYBRID"

    def priority(self, node: Node, cache: NodeCache) -> float:
        """α · frequency + (1 − α) · turnovers."""
        turnovers = cache.inserted_tokens / cache.capacity if cache.capacity else 0.0
        return ALPHA * node.frequency + (1 - ALPHA) * turnovers
