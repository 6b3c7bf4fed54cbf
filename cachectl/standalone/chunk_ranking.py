"""The worth of single chunks of KV, for a cache that keeps its own order and has no knowledge tree."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from cachectl.tree.node import Node
from cachectl.tree.tier_cache import TierCache
from protocol.tiers import Tier

if TYPE_CHECKING:
    from collections.abc import Callable

    from cachectl.policies.base import ReplacementPolicy


class PolicyChunkRanking:
    """The priorities that a replacement policy gives to chunks of equal size, and the clock that it ages them by.

    ``cost`` is T(cached, new): what a pass of new tokens behind cached ones costs, in seconds. Each chunk is a node of
    its own, so AvgCost and frequency, here that of its whole stay, are counted as in the tree; both are forgotten when
    it leaves. It is for policies that rank by these and the clock, as PGDSF, GDSF and LFU do.
    """

    def __init__(self, policy: ReplacementPolicy, cost: Callable[[int, int], float]) -> None:
        self._policy = policy
        self._cost = cost
        self._ticks = count(1)
        self.clear()

    def computed(self, key: bytes, cached_tokens: int, new_tokens: int) -> float:
        """Count a request that computed the chunk, in a pass of ``new_tokens`` behind ``cached_tokens``: its priority.

        A key that is not known yet begins here.
        """
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = Node(key, "", 1, None)
        node.count_computation(self._cost(cached_tokens, new_tokens) / new_tokens)
        return self._accessed(node)

    def reused(self, key: bytes) -> float:
        """Count a request that found the chunk: its priority. Raises KeyError for a chunk that was never computed."""
        return self._accessed(self._nodes[key])

    def evicted(self, key: bytes, priority: float) -> None:
        """Forget a chunk that was evicted; the clock moves on to its priority (RAGCache, Algorithm 1)."""
        self._place.clock = max(self._place.clock, priority)
        self.forget(key)

    def forget(self, key: bytes) -> None:
        """Forget a chunk that has left in another way."""
        self._nodes.pop(key, None)

    def clear(self) -> None:
        """Forget everything, and set the clock back."""
        self._nodes: dict[bytes, Node] = {}
        # Only its clock is used: room and order are the cache's own.
        self._place = TierCache(Tier.HOST, 0, self._policy)

    def _accessed(self, node: Node) -> float:
        node.count_access(next(self._ticks), now=0.0, window_s=None)
        return self._policy.priority(node, self._place)
