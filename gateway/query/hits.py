"""Which of a prompt's documents were found, and where: read off the plan and what its prefill came to."""

from protocol.generation import PrefillResult
from protocol.plans import PrefillPlan
from protocol.prompts import SegmentKind
from protocol.tiers import Tier


def found_in(plan: PrefillPlan, prefill: PrefillResult) -> tuple[Tier | None, ...]:
    """For each document of the prompt, in order, the tier that its KV came from; None if any of it was computed.

    What was cached is the prompt's front, so the first document that was not found is followed by no other that was.
    One that the plan did not name a tier for was found by the engine itself, in its own paged cache.
    """
    nodes = iter(plan.nodes)
    found: list[Tier | None] = []
    end = 0
    for segment in plan.prompt.segments:
        end += len(segment.token_ids)
        # An empty segment is no node.
        node = next(nodes, None) if segment.token_ids else None
        if segment.kind is SegmentKind.DOCUMENT:
            source = node.source if node is not None else None
            found.append((source or Tier.GPU) if end <= prefill.cached_tokens else None)
    return tuple(found)
