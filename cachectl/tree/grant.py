"""A grant: what one plan holds of the knowledge tree, from the moment it is made until it is settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from protocol.kv import Pages
from protocol.tiers import Tier

if TYPE_CHECKING:
    from cachectl.tree.node import Node
    from cachectl.tree.tier_cache import Copy
    from protocol.kv import Move


class PathDocument(NamedTuple):
    """A document on a path: the content hash that names it, and its length in tokens."""

    content: str
    tokens: int


class GrantedDocument(NamedTuple):
    """A document of a grant: where its KV is loaded from (None: computed), and the fastest tier where it is kept.

    ``pages`` are those in host memory, where one of the two is that.
    """

    key: bytes
    tokens: int
    source: Tier | None
    kept: Tier | None
    pages: Pages | None = None


class Grant:
    """What one plan holds of the tree until it is settled: locks on its path, and room reserved for what it brings.

    ``moves`` are the orders that come with the plan, to be carried out before its own loads: they were, once it is
    ``committed``. ``ends`` are the speculations that give way to it. It was ``overtaken`` so often while it waited. A
    grant is ``revoked`` when it was settled because its instance is gone.
    """

    __slots__ = (
        "completed",
        "documents",
        "ends",
        "instance",
        "locked",
        "moves",
        "overtaken",
        "prefilled",
        "query_id",
        "reserved",
        "revoked",
        "tick",
    )

    def __init__(self, query_id: str, instance: str, tick: int) -> None:
        self.query_id = query_id
        self.instance = instance
        self.tick = tick
        self.documents: list[GrantedDocument] = []
        self.moves: list[Move] = []
        self.ends: list[str] = []
        self.overtaken = 0
        self.locked: list[Node] = []
        self.reserved: list[Copy] = []
        self.prefilled = False
        self.completed = False
        self.revoked = False
