"""Messages between an engine and its connector: what a request carries in, and what a report carries out."""

from typing import Any

import msgspec

from protocol.kv import KvMemory, KvRead, LostCopy, Orders, ResidencyReport
from protocol.plans import PrefillPlan
from protocol.prompts import Prompt
from protocol.tiers import Tier

PARAMETER = "ragtree"
"""RAGTree's key in a request's ``kv_transfer_params``."""


class RequestMessage(msgspec.Struct, frozen=True):
    """What one request carries to the connector: a ``plan``, or ``orders`` outside of any plan.

    ``name`` identifies the request in reports. The plan comes without its prompt, which is the request's own. ``path``
    lists the content hashes of the documents at the start of the prompt; the plan's nodes are the first ones.
    ``inquire`` asks what all tiers hold.
    """

    name: str
    plan: PrefillPlan | None = None
    path: tuple[str, ...] = ()
    orders: Orders = Orders()
    inquire: bool = False

    @classmethod
    def of_plan(cls, plan: PrefillPlan) -> "RequestMessage":
        """The part of a plan that the engine executes."""
        path = tuple(segment.key for segment in plan.prompt.prefix)
        return cls(plan.query_id, msgspec.structs.replace(plan, prompt=Prompt(()), first=None), path)

    def as_parameters(self) -> dict[str, Any]:
        """The ``kv_transfer_params`` that carry this message into the engine."""
        return {PARAMETER: msgspec.to_builtins(self)}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any] | None) -> "RequestMessage | None":
        """The message in a request's ``kv_transfer_params``, or None. Raises msgspec.ValidationError if malformed."""
        carried = (parameters or {}).get(PARAMETER)
        return None if carried is None else msgspec.convert(carried, cls)


class Composed(msgspec.Struct, frozen=True):
    """How a prompt was composed: donated tokens ``reused`` as they were, and those ``recomputed``.

    Both are 0 if the ``deviation`` of the recomputed ones exceeded its bound, so that the prompt was computed.
    """

    reused: int
    recomputed: int
    deviation: float


NOT_COMPOSED = Composed(reused=0, recomputed=0, deviation=0.0)


class Prefilled(msgspec.Struct, frozen=True):
    """How a prompt was prefilled: tokens ``loaded`` by tier; the engine computed the others.

    ``load_ms`` is the time spent on loads; on a GPU, that of submitting those within a step. ``reached`` is set for a
    speculative request that ended before its first token: the number of prompt tokens that were computed by then, 0 if
    none of it is kept. ``composed`` is set if donated tokens were used. ``reads`` is what was read of tiers.
    """

    loaded: dict[Tier, int]
    load_ms: float
    reached: int | None = None
    composed: Composed | None = None
    reads: tuple[KvRead, ...] = ()


class EngineReport(msgspec.Struct, frozen=True):
    """What the connector reports after a step.

    ``prefilled`` is keyed by request name. ``carried_out`` lists plans and other messages all of whose moves are done,
    by name, each with the copies that it should have made and did not. ``refused`` names those whose documents
    could not be deleted. ``lost`` are missing copies as soon as they are known, those included. ``held`` answers
    inquiries, by name.
    """

    prefilled: dict[str, Prefilled] = {}
    carried_out: dict[str, tuple[LostCopy, ...]] = {}
    refused: tuple[str, ...] = ()
    lost: tuple[LostCopy, ...] = ()
    held: dict[str, tuple[ResidencyReport, ...]] = {}
    memory: KvMemory | None = None
