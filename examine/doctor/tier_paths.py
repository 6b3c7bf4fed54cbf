"""The prefixes whose times to first token are measured."""

from examine.doctor.context import Context
from examine.measuring.kv_paths import QUESTION_TOKENS, KvPath
from examine.measuring.tier_rounds import SYSTEM_TOKENS, round_segments

_DOCUMENTS = 2
_ANY_BLOCK = 128
"""A multiple of all usual block sizes: without the connector, an engine does not say its own."""


def round_path(context: Context, number: int) -> KvPath:
    """Return a round's path, which fills whole blocks and fits the model's context."""
    room = context.max_model_len - SYSTEM_TOKENS - QUESTION_TOKENS - _ANY_BLOCK
    tokens = max(1, min(context.sizes.document_tokens, room // _DOCUMENTS))
    page_tokens = context.memory.page_tokens if context.memory is not None else _ANY_BLOCK
    return KvPath(round_segments(number, _DOCUMENTS, tokens, _ANY_BLOCK), page_tokens)
