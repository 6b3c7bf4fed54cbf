"""A grant: what one plan holds of the knowledge tree, from admission until it is complete."""

from __future__ import annotations

from cachectl.nodes.node import Copy, Node
from cachectl.tiers.pending_moves import MoveBatch
from protocol.plans import Fallback, PlannedNode


class Grant(MoveBatch):
    """Locks on a plan's path, and room reserved for what the plan loads or computes.

    If it composes and some documents have no donors, these are prefilled exactly, after what is loaded: ``first``, by
    their places in the composed prompt.
    ``moves`` come with the plan and are begun before its own loads; once the grant is ``prefilled``, they have been.
    ``writes`` also has the plan's own copies in shared tiers. ``ends`` are the speculations that give way to the plan.
    ``dropped_branches`` are the keys of kept branches of dependency trees that leave for the plan's own. ``overtaken``
    counts the younger requests served while the request waited. The plan computes ``computed_tokens``. If it composes,
    ``recompute_share`` of what is donated is among them; ``fallback`` says why it does not. A grant is ``revoked`` when
    it was completed because its instance is gone.
    """

    def __init__(self, query_id: str, instance: str, tick: int, computed_tokens: int, ahead: bool = False) -> None:
        super().__init__(instance, ahead)
        self.query_id = query_id
        self.tick = tick
        self.documents: list[PlannedNode] = []
        self.first: dict[int, PlannedNode] = {}
        self.ends: list[str] = []
        self.dropped_branches: tuple[bytes, ...] = ()
        self.overtaken = 0
        self.computed_tokens = computed_tokens
        self.recompute_share: float | None = None
        self.fallback: Fallback | None = None
        self.locked: list[Node] = []
        self.reserved: list[Copy] = []
        self.prefilled = False
        self.completed = False
        self.revoked = False

    @property
    def read_places(self) -> set[str]:
        """The places of peers that the plan reads from."""
        documents = [*self.documents, *self.first.values()]
        peers = [document.peer for document in documents]
        peers += [document.donor.peer for document in documents if document.donor is not None]
        return {peer.location for peer in peers if peer is not None}
