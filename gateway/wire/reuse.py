"""How a prompt used KV that was there before, as replies, events and metrics say it."""

from typing import Literal, TypeAlias

from protocol.generation import PrefillResult
from protocol.plans import Fallback, PrefillPlan
from protocol.prompts import SegmentKind
from protocol.tiers import Tier

ReuseClass: TypeAlias = Literal["exact", "composed", "none"]

FactsAttention: TypeAlias = Literal["self", "dependency"]
"""How a prompt attended to its facts of a graph: to every path in full, or within trees."""

Approximation: TypeAlias = Literal["composing", "dependency"]
"""How KV differs from that of a full prefill: documents were computed after other ones, or facts stand in trees."""


def reuse_class(prefill: PrefillResult) -> ReuseClass:
    """``composed`` if any KV was computed after other documents, ``exact`` if some of the prompt was cached."""
    if prefill.composed_tokens or prefill.recomputed_tokens:
        return "composed"
    return "exact" if prefill.cached_tokens else "none"


def approximation_of(plan: PrefillPlan, reuse: ReuseClass) -> Approximation | None:
    """How the prompt's KV differs from that of a full prefill: ``dependency`` if in both ways; None if it does not."""
    if plan.trees is not None:
        return "dependency"
    return "composing" if reuse == "composed" else None


def fallback_of(plan: PrefillPlan, prefill: PrefillResult) -> Fallback | None:
    """Why nothing of a prompt was composed, although that was asked for."""
    if plan.recompute is not None and reuse_class(prefill) != "composed":
        return Fallback.DEVIATION if prefill.deviation else Fallback.FAILED
    return plan.fallback


def facts_attention(plan: PrefillPlan, prefill: PrefillResult) -> FactsAttention | None:
    """How the prompt attended to its facts; None if it has none."""
    if not plan.prompt.paths:
        return None
    return "dependency" if prefill.in_trees else "self"


def facts_fallback(plan: PrefillPlan, prefill: PrefillResult) -> Fallback | None:
    """Why facts were not in trees, although they were to be."""
    return Fallback.FAILED if plan.trees is not None and not prefill.in_trees else plan.tree_fallback


def found_in(plan: PrefillPlan, prefill: PrefillResult) -> tuple[Tier | None, ...]:
    """For each document of the prompt, in order, the tier that its KV came from. None if any of it was computed.

    The cached tokens are a prefix of the prompt, so no hit follows a miss. A hit for which the plan names no tier was
    found by the engine in its own paged cache.
    """
    nodes = iter(plan.nodes)
    found: list[Tier | None] = []
    end = 0
    for segment in plan.prompt.segments:
        end += len(segment.token_ids)
        # Empty segments have no node.
        node = next(nodes, None) if segment.token_ids else None
        if segment.kind is SegmentKind.DOCUMENT:
            source = node.loaded_from if node is not None else None
            found.append((source or Tier.GPU) if end <= prefill.cached_tokens else None)
    return tuple(found)
