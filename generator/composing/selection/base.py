"""The contract of selectors."""

from typing import Protocol

from generator.composing.composed_prompt import ComposedPrompt
from generator.composing.runs import Run


class Selector(Protocol):
    """Chooses which tokens of a prompt's composed documents are computed again."""

    def select(self, prompt: ComposedPrompt, budget: int) -> list[Run]:
        """Ascending runs within the documents, of ``budget`` tokens at most.

        May write the KV of the question, which is computed later, but of nothing else.
        """
