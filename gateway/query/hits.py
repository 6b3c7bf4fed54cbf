"""Cache hits of a prompt's documents, derived from its plan and its prefill."""

from protocol.generation import PrefillResult
from protocol.plans import PrefillPlan
from protocol.prompts import SegmentKind
from protocol.tiers import Tier


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
