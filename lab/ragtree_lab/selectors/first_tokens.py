"""Selects the first tokens of each document (EPIC: Hu et al. 2025, section 4)."""

from generator.composing.runs import Run, joined
from generator.composing.selection.base import ComposedPrompt, Selection, Selector


class FirstTokens(Selector):
    """Selects equally many tokens at the start of each document, where models put attention sinks."""

    def select(self, prompt: ComposedPrompt, budget: int) -> Selection:
        """The first tokens of each document, of ``budget`` tokens at most."""
        left = len(prompt.documents)
        chosen = []
        # From the shortest on, so that what a short document leaves goes to the longer ones.
        for document in sorted(prompt.documents, key=lambda run: run.tokens):
            tokens = min(document.tokens, budget // left)
            chosen.append(Run(document.start, document.start + tokens))
            budget -= tokens
            left -= 1
        return Selection(joined(chosen))
