"""What a replacement policy is to the knowledge tree.

The tree owns the outer loop: look a path up, count the access, ask who has to leave, and insert. A policy is one
formula: what a copy is worth, and whether a newcomer is worth its victims.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from mypy_extensions import mypyc_attr

from cachectl.policies.eviction_order import EvictionOrder, PriorityOrder
from cachectl.tree.node import PathDocument

if TYPE_CHECKING:
    from cachectl.policies.lookahead import Lookahead
    from cachectl.tree.node import Copy, Node, NodeCache


class Arrival(NamedTuple):
    """A request as it is served: number ``tick``, its documents, their nodes' keys, and what it misses.

    ``missed_tokens`` are its documents' tokens that have to be computed; ``capacity`` is that of all caches together.
    """

    tick: int
    keys: Sequence[bytes]
    documents: Sequence[PathDocument]
    missed_tokens: int
    capacity: int


# Compiled (scripts/compile), it can be derived from all the same.
@mypyc_attr(allow_interpreted_subclasses=True)
class ReplacementPolicy(ABC):
    """Ranks the copies of a cache: the leaf of lowest priority leaves first.

    ``name`` is what configuration calls it; one that never ``keeps`` anything is given no room. ``lookahead`` tells
    what the requests that wait will need. A policy keeps no reference to nodes; what it knows of one stands in it, in
    ``Node.history`` if nowhere else.
    """

    name: ClassVar[str]
    keeps: ClassVar[bool] = True

    def __init__(self, lookahead: Lookahead) -> None:
        self.lookahead = lookahead

    def begin(self, arrival: Arrival) -> None:  # noqa: B027
        """Hear of a request before its nodes are counted."""

    def entered(self, node: Node) -> None:  # noqa: B027
        """Hear of a node that the tree has from now on."""

    def left(self, node: Node) -> None:  # noqa: B027
        """Hear of a node that the tree has no longer."""

    @abstractmethod
    def priority(self, node: Node, cache: NodeCache) -> float:
        """What a copy of a node in a cache is worth now; for most policies, what it was worth at its last access."""

    def current(self, copy: Copy) -> float:
        """A copy's priority at this moment: what its last access gave it, or more."""
        return copy.priority

    def admits(self, newcomer: float, victim: float) -> bool:  # noqa: ARG002
        """Whether a newcomer of one priority may drive out a copy of another."""
        return True

    def order(self, final: bool) -> EvictionOrder:  # noqa: ARG002
        """A new order of eviction for a cache under this policy; ``final``: what leaves it goes to no slower one."""
        return PriorityOrder(lambda copy: self.priority(copy.node, copy.cache), self.current)
