"""The system prompt as a path of the knowledge tree, which the documents of every prompt are behind."""

from protocol.parts import PromptLayout
from protocol.prompts import ChatMessage, SegmentKind


def system_path(layout: PromptLayout) -> tuple[str, ...]:
    """Keys of the system prompt that every prompt begins with. An empty one has no node."""
    prompt = layout.lay_out((ChatMessage("user", "?"),), (), max_tokens=1)
    return tuple(s.key for s in prompt.segments if s.kind is SegmentKind.SYSTEM and s.token_ids)
