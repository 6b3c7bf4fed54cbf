"""Prompts, laid out where it takes no time from other queries."""

from collections.abc import Sequence
from typing import TypedDict, Unpack

from gateway.off_loop import ITEM, off_loop
from protocol.graph import ContextBudget, Path
from protocol.parts import PromptLayout
from protocol.prompts import ChatMessage, Prompt
from protocol.retrieval import Chunk


class _Options(TypedDict, total=False):
    preamble: bool
    paths: Sequence[Path]
    budget: ContextBudget


async def laid_out(
    layout: PromptLayout,
    messages: Sequence[ChatMessage],
    documents: Sequence[Chunk],
    max_tokens: int,
    **options: Unpack[_Options],
) -> Prompt:
    """What ``PromptLayout.lay_out`` returns. Raises what it raises."""
    characters = sum(ITEM + len(message.content) for message in messages)
    characters += sum(len(document.text) for document in documents)
    characters += sum(len(path.text) for path in options.get("paths", ()))
    return await off_loop(characters, lambda: layout.lay_out(messages, documents, max_tokens, **options))
