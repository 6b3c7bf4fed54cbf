"""Selects nothing, and sharpens the attention to documents that were computed apart (APE: Yang et al. 2025)."""

from collections.abc import Sequence

from generator.composing.attention_layers import AttentionLayer, LayerKv, slots_of
from generator.composing.runs import positions_of
from generator.composing.selection.base import ComposedPrompt, Selection, Selector

_TEMPERATURE = 0.9
"""Within the range that the paper's section 5 tries."""


class AttentionTemperature(Selector):
    """Divides the attention scores of all documents' tokens by a temperature below 1, by enlarging their keys.

    The paper also scales the sum over these tokens. That cannot be put into keys, so it is left out.
    """

    def __init__(self, layers: Sequence[AttentionLayer], page_tokens: int) -> None:
        self._layers = layers
        self._page_tokens = page_tokens

    def select(self, prompt: ComposedPrompt, budget: int) -> Selection:  # noqa: ARG002
        """No tokens at all."""
        positions = positions_of(prompt.documents, prompt.blocks.device)
        slots = slots_of(positions, prompt.blocks, self._page_tokens)
        for layer in self._layers:
            keys, values = prompt.kv(layer, prompt.documents)
            layer.write(LayerKv(keys / _TEMPERATURE, values), slots)
        return Selection(())
