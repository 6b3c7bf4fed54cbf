"""BELADY: a clairvoyant ceiling, for simulations only.

Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 1966.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, ClassVar

from cachectl.policies.base import Arrival, ReplacementPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cachectl.nodes.node import Copy, Node, NodeCache
    from cachectl.policies.lookahead import Lookahead


class Belady(ReplacementPolicy):
    """Priority = AvgCost / requests until the next use, which is known from the whole trace.

    A token that stays until its node's next use takes room for that long and then saves AvgCost seconds, so a node's
    size cancels out. A newcomer that is worth no more than its victims is not kept.

    With equal sizes, one tier, flat costs and requests served in order of arrival, evicting the furthest next use is
    optimal. Here sizes differ, leaves are evicted before their parents, tiers exchange nodes and the queue reorders, so
    the exact optimum is a hard packing problem. This policy shows what knowing the next use is worth. Another policy
    may beat it by a little on a given trace.
    """

    name: ClassVar[str] = "BELADY"

    def __init__(self, lookahead: Lookahead, paths: Iterable[Sequence[bytes]]) -> None:
        super().__init__(lookahead)
        self._tick = 0
        self._uses: dict[bytes, deque[int]] = {}
        for number, keys in enumerate(paths, start=1):
            for key in keys:
                self._uses.setdefault(key, deque()).append(number)

    def begin(self, arrival: Arrival) -> None:
        """Remove this request's uses from the future."""
        self._tick = arrival.tick
        for key in arrival.keys:
            uses = self._uses[key]
            uses.popleft()
            if not uses:
                del self._uses[key]

    def priority(self, node: Node, cache: NodeCache) -> float:  # noqa: ARG002
        """Seconds saved per token, and per request until the next use."""
        uses = self._uses.get(node.key)
        return node.average_cost / max(1, uses[0] - self._tick) if uses else 0.0

    def current(self, copy: Copy) -> float:
        """The same at this moment. It rises as the next use comes nearer."""
        return self.priority(copy.node, copy.cache)

    def admits(self, newcomer: float, victim: float) -> bool:
        """Whether the newcomer is worth more."""
        return newcomer > victim
