"""A grant: what one plan holds of the knowledge tree, from admission until it is complete."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cachectl.tiers.move_batch import MoveBatch
from protocol.kv import Pages
from protocol.tiers import Tier

if TYPE_CHECKING:
    from cachectl.nodes.node import Copy, Node


class GrantedDocument(NamedTuple):
    """A document of a grant: the tier it is loaded from (None: computed), and the fastest tier that keeps it.

    ``pages`` are its pages in host memory, if it is loaded from there or kept there.
    """

    key: bytes
    tokens: int
    source: Tier | None
    kept: Tier | None
    pages: Pages | None = None


class Grant(MoveBatch):
    """Locks on a plan's path, and room reserved for what the plan loads or computes.

    ``moves`` come with the plan and are begun before its own loads; once the grant is ``prefilled``, they have been.
    ``writes`` also has the plan's own copies in shared tiers. ``ends`` are the speculations that give way to the plan.
    ``overtaken`` counts the younger requests served while the request waited. A grant is ``revoked`` when it was
    completed because its instance is gone.
    """

    __slots__ = (
        "completed",
        "documents",
        "ends",
        "locked",
        "overtaken",
        "prefilled",
        "query_id",
        "reserved",
        "revoked",
        "tick",
    )

    def __init__(self, query_id: str, instance: str, tick: int) -> None:
        super().__init__(instance)
        self.query_id = query_id
        self.tick = tick
        self.documents: list[GrantedDocument] = []
        self.ends: list[str] = []
        self.overtaken = 0
        self.locked: list[Node] = []
        self.reserved: list[Copy] = []
        self.prefilled = False
        self.completed = False
        self.revoked = False
