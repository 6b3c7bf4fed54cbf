"""Prompts, laid out where it takes no time from other queries."""

from collections.abc import Sequence

from gateway.off_loop import off_loop
from protocol.graph import UNBOUNDED, ContextBudget, Path
from protocol.parts import PromptLayout
from protocol.prompts import ChatMessage, Prompt
from protocol.retrieval import Chunk


async def laid_out(
    layout: PromptLayout,
    messages: Sequence[ChatMessage],
    documents: Sequence[Chunk],
    max_tokens: int,
    *,
    preamble: bool = True,
    paths: Sequence[Path] = (),
    budget: ContextBudget = UNBOUNDED,
) -> Prompt:
    """The prompt of these messages, documents and paths. Raises what ``PromptLayout.lay_out`` raises."""
    texts = (
        (message.content for message in messages),
        (chunk.text for chunk in documents),
        (path.text for path in paths),
    )
    # A message costs its part of the chat template, too.
    characters = sum(len(text) for kind in texts for text in kind) + 100 * len(messages)
    return await off_loop(
        characters,
        lambda: layout.lay_out(messages, documents, max_tokens, preamble=preamble, paths=paths, budget=budget),
    )
