"""Priorities of single KV chunks, for a cache with its own order and without a knowledge tree."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from cachectl.nodes.node import Node
from cachectl.tiers.tier_cache import TierCache
from protocol.tiers import Tier

if TYPE_CHECKING:
    from collections.abc import Callable

    from cachectl.policies.base import ReplacementPolicy


class PolicyChunkRanking:
    """The priorities that a replacement policy gives to chunks of equal size, and the clock by which they age.

    ``cost`` is T(cached, new): the seconds of a pass of new tokens behind cached ones. Each chunk is a node of its own,
    so AvgCost and frequency are counted as in the tree, frequency without a window. Both are forgotten when the chunk
    leaves. For policies that rank by these and the clock, such as PGDSF, GDSF and LFU.
    """

    def __init__(self, policy: ReplacementPolicy, cost: Callable[[int, int], float]) -> None:
        self._policy = policy
        self._cost = cost
        self._ticks = count(1)
        self.clear()

    def computed(self, key: bytes, cached_tokens: int, new_tokens: int) -> float:
        """Count a request that computed the chunk, in a pass of ``new_tokens`` behind ``cached_tokens``.

        Returns the chunk's priority. An unknown key is added.
        """
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = Node(key, "", 1, None)
        node.count_computation(self._cost(cached_tokens, new_tokens) / new_tokens)
        return self._accessed(node)

    def reused(self, key: bytes) -> float:
        """Count a request that found the chunk. Returns its priority. Raises KeyError for an unknown chunk."""
        return self._accessed(self._nodes[key])

    def evicted(self, key: bytes, priority: float) -> None:
        """Forget an evicted chunk. The clock advances to its priority (RAGCache, Algorithm 1)."""
        self._clock_cache.clock = max(self._clock_cache.clock, priority)
        self.forget(key)

    def forget(self, key: bytes) -> None:
        """Forget a chunk that left the cache in another way."""
        self._nodes.pop(key, None)

    def clear(self) -> None:
        """Forget all chunks, and reset the clock."""
        self._nodes: dict[bytes, Node] = {}
        # Only its clock is used. The real cache has its own room and order.
        self._clock_cache = TierCache(Tier.HOST, 0, self._policy)

    def _accessed(self, node: Node) -> float:
        node.count_access(next(self._ticks), now=0.0, window_s=None)
        return self._policy.priority(node, self._clock_cache)
