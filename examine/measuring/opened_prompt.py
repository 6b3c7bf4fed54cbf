"""Prompts that contain the beginning of their answer."""

import msgspec

from protocol.prompts import Prompt, Segment


def opened(prompt: Prompt, opening: tuple[int, ...]) -> Prompt:
    """The prompt of a question whose answer has begun with the tokens of ``opening``."""
    *front, question = prompt.segments
    begun = Segment(question.kind, question.key, question.token_ids + opening)
    return msgspec.structs.replace(prompt, segments=(*front, begun))
