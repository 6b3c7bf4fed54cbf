"""A move batch: the moves that one plan or one delivery takes to an instance."""

from __future__ import annotations

from cachectl.nodes.node import Copy
from protocol.kv import Move


class MoveBatch:
    """Moves that an ``instance`` carries out in this order; any instance at their location if it is empty.

    ``writes`` are the copies in shared tiers that come into being with them. Moves ``ahead`` of a request's turn evict
    nothing that any waiting request needs.
    """

    __slots__ = ("ahead", "instance", "moves", "writes")

    def __init__(self, instance: str, ahead: bool = False) -> None:
        self.instance = instance
        self.ahead = ahead
        self.moves: list[Move] = []
        self.writes: list[Copy] = []
