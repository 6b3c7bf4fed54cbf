"""How a prompt used KV that was there before, as replies, events and metrics say it."""

from typing import Literal, TypeAlias

from protocol.generation import PrefillResult
from protocol.plans import Fallback, PrefillPlan

ReuseClass: TypeAlias = Literal["exact", "composed", "none"]


def reuse_class(prefill: PrefillResult) -> ReuseClass:
    """``composed`` if any KV was computed behind other documents, ``exact`` if some of the prompt was cached."""
    if prefill.composed_tokens or prefill.recomputed_tokens:
        return "composed"
    return "exact" if prefill.cached_tokens else "none"


def fallback_of(plan: PrefillPlan, prefill: PrefillResult) -> Fallback | None:
    """Why nothing of a prompt was composed, although that was asked for."""
    if plan.recompute is not None and reuse_class(prefill) != "composed":
        return Fallback.DEVIATION if prefill.deviation else Fallback.FAILED
    return plan.fallback
