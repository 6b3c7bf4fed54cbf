"""Selects nothing: direct reuse, as in Shared RAG-DCache without cross-attention."""

from generator.composing.selection.base import ComposedPrompt, Selection, Selector


class Nothing(Selector):
    """Selects nothing: each document keeps the KV that it has on its own."""

    def select(self, prompt: ComposedPrompt, budget: int) -> Selection:  # noqa: ARG002
        """No runs."""
        return Selection(())
