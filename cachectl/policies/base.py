"""The interface between a replacement policy and the knowledge tree.

The tree owns the outer loop: it looks a path up, counts the access, evicts, and inserts. A policy is one formula: what
a copy is worth, and whether a newcomer is worth its victims.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from mypy_extensions import mypyc_attr

from cachectl.nodes.node import Copy, Node, NodeCache, PathDocument
from cachectl.policies.eviction_order import EvictionOrder
from cachectl.policies.lookahead import Lookahead
from cachectl.policies.priority_order import PriorityOrder


class Arrival(NamedTuple):
    """A request as it is served: number ``tick``, its documents and the keys of their nodes, or of their donors.

    ``missed_tokens`` are its documents' tokens that have to be computed. ``capacity`` is that of all tier caches
    together, in tokens.
    """

    tick: int
    keys: Sequence[bytes]
    documents: Sequence[PathDocument]
    missed_tokens: int
    capacity: int


# Compiled by scripts/compile. This attribute lets interpreted classes still derive from it.
@mypyc_attr(allow_interpreted_subclasses=True)
class ReplacementPolicy(ABC):
    """Ranks the copies of a tier cache: the leaf of lowest priority is evicted first.

    ``name`` is the policy's name in the configuration. A policy that never ``keeps`` anything is given no room.
    ``lookahead`` tells what waiting requests need. A policy holds no reference to nodes: what it knows of a node is
    stored in the node, in ``Node.history`` if nowhere else.
    """

    name: ClassVar[str]
    keeps: ClassVar[bool] = True

    def __init__(self, lookahead: Lookahead) -> None:
        self.lookahead = lookahead

    def begin(self, arrival: Arrival) -> None:  # noqa: B027
        """Record a request, before the accesses of its nodes are counted."""

    def entered(self, node: Node) -> None:  # noqa: B027
        """Record that a node was added to the tree."""

    def left(self, node: Node) -> None:  # noqa: B027
        """Record that a node was removed from the tree."""

    @abstractmethod
    def priority(self, node: Node, cache: NodeCache) -> float:
        """What a node's copy in a tier cache is worth. For most policies this changes at accesses only."""

    def current(self, copy: Copy) -> float:
        """A copy's priority at this moment: that of its last access, or more."""
        return copy.priority

    def admits(self, newcomer: float, victim: float) -> bool:  # noqa: ARG002
        """Whether a newcomer of one priority may evict a copy of another."""
        return True

    def order(self, final: bool) -> EvictionOrder:  # noqa: ARG002
        """A new eviction order for a tier cache. ``final`` says that what leaves this cache goes to no slower one."""
        return PriorityOrder(lambda copy: self.priority(copy.node, copy.cache), self.current)
