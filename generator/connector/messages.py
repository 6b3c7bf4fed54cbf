"""What the scheduler half is told with a request, and what it tells back."""

from typing import Any

import msgspec

from protocol.kv import KvMemory, LostCopy, Move, Orders, ResidencyReport
from protocol.plans import PlannedNode, PrefillPlan
from protocol.tiers import Tier

PARAMETER = "ragtree"
"""The entry of a request's ``kv_transfer_params`` that is RAGTree's."""


class RequestOrders(msgspec.Struct, frozen=True):
    """What one request brings along: a ``plan``, or orders outside of any plan.

    ``name`` names the request in reports. ``path`` lists the content hashes of the documents that begin the prompt,
    ``nodes`` the first of them that have a place in the plan; what is computed of these is kept even if the request
    ends before its first token, where it is ``speculative``. ``everything`` is to be forgotten, not only some
    documents; or all of it only in the engine's own blocks. ``inquire`` asks what all tiers hold.
    """

    name: str
    plan: bool = True
    namespace: str = ""
    path: tuple[str, ...] = ()
    nodes: tuple[PlannedNode, ...] = ()
    moves: tuple[Move, ...] = ()
    spare: tuple[str, ...] = ()
    forget: tuple[tuple[str, str], ...] = ()
    everything: bool = False
    blocks_only: bool = False
    inquire: bool = False
    speculative: bool = False

    @classmethod
    def of_plan(cls, plan: PrefillPlan) -> "RequestOrders":
        """A plan, as far as the engine is concerned."""
        path = tuple(segment.key for segment in plan.prompt.prefix)
        return cls(
            plan.query_id,
            namespace=plan.namespace,
            path=path,
            nodes=plan.nodes,
            moves=plan.moves,
            spare=plan.spare,
            speculative=plan.speculative,
        )

    @classmethod
    def outside_plans(cls, name: str, orders: Orders, inquire: bool = False) -> "RequestOrders":
        """Orders that come with no plan."""
        return cls(
            name,
            plan=False,
            moves=orders.moves,
            forget=orders.forget,
            everything=orders.everything,
            blocks_only=orders.blocks_only,
            inquire=inquire,
        )

    def as_parameters(self) -> dict[str, Any]:
        """The ``kv_transfer_params`` that carry this to the engine."""
        return {PARAMETER: msgspec.to_builtins(self)}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any] | None) -> "RequestOrders | None":
        """What a request brought along, None for nothing. Raises msgspec.ValidationError for what is malformed."""
        carried = (parameters or {}).get(PARAMETER)
        return None if carried is None else msgspec.convert(carried, cls)


class Resolved(msgspec.Struct, frozen=True):
    """Where a prompt's tokens came from by the time of its first token: ``loaded`` by tier, the others were computed.

    ``load_ms`` were spent on loading. A speculative request that ended before that had ``reached`` so many tokens, none
    where nothing of it is kept.
    """

    loaded: dict[Tier, int]
    load_ms: float
    reached: int | None = None


class EngineReport(msgspec.Struct, frozen=True):
    """What the connector has to say after a step.

    ``resolved`` by the names of requests; ``carried_out``: orders outside of plans that are done to their end, by name,
    with the copies that should be there now and are not; ``refused`` are orders whose documents could not be deleted.
    ``lost`` are missing copies of any node. ``held`` answers inquiries by name.
    """

    resolved: dict[str, Resolved] = {}
    carried_out: dict[str, tuple[LostCopy, ...]] = {}
    refused: tuple[str, ...] = ()
    lost: tuple[LostCopy, ...] = ()
    held: dict[str, tuple[ResidencyReport, ...]] = {}
    memory: KvMemory | None = None
