"""BELADY: the clairvoyant ceiling, for the simulator alone."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, ClassVar

from cachectl.policies.base import Arrival, ReplacementPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cachectl.policies.lookahead import Lookahead
    from cachectl.tree.node import Copy, Node, NodeCache


class Belady(ReplacementPolicy):
    """Priority = AvgCost / requests until the next use, known from the whole trace: what is kept pays soonest.

    A token that stays until its node's next use occupies room for that long and saves AvgCost seconds then, so a node's
    size cancels out. A newcomer that would be used later than its victims is not let in.

    What it bounds, and what not: with equal sizes, one tier, flat costs and requests served as they came, furthest next
    use is optimal (Belady 1966). Here sizes differ, leaves must go before their parents, tiers exchange nodes and the
    queue reorders; the exact optimum is then a hard packing problem. It is a ceiling in the sense of what knowing the
    next use is worth, and a policy may beat it by a little on a given trace.
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
        """Take this request's uses off the future."""
        self._tick = arrival.tick
        for key in arrival.keys:
            uses = self._uses[key]
            uses.popleft()
            if not uses:
                del self._uses[key]

    def priority(self, node: Node, cache: NodeCache) -> float:  # noqa: ARG002
        """Seconds saved per token and request of waiting."""
        uses = self._uses.get(node.key)
        return node.average_cost / max(1, uses[0] - self._tick) if uses else 0.0

    def current(self, copy: Copy) -> float:
        """The same at this moment: it rises as the next use comes nearer."""
        return self.priority(copy.node, copy.cache)

    def admits(self, newcomer: float, victim: float) -> bool:
        """Whether the newcomer pays sooner."""
        return newcomer > victim
