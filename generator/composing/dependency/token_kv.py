"""The KV of single tokens in all layers, apart from an engine's blocks."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from generator.composing.attention_layers import AttentionLayer
from generator.composing.codec import LayerKv


class TokenKv(NamedTuple):
    """What each of the ``layers`` has of the same tokens."""

    layers: tuple[LayerKv, ...]

    @classmethod
    def empty(cls, tokens: int, layers: Sequence[AttentionLayer], device: torch.device) -> "TokenKv":
        """Memory for so many tokens in these layers, not yet written."""
        return cls(tuple([_empty(tokens, layer, device) for layer in layers]))

    @property
    def tokens(self) -> int:
        """How many tokens they are."""
        return len(self.layers[0].keys)

    def part(self, first: int, behind: int) -> "TokenKv":
        """A view of consecutive tokens."""
        return TokenKv(tuple([LayerKv(keys[first:behind], values[first:behind]) for keys, values in self.layers]))

    def rows(self, numbers: torch.Tensor) -> "TokenKv":
        """A copy of tokens."""
        chosen = [
            LayerKv(keys.index_select(0, numbers), values.index_select(0, numbers)) for keys, values in self.layers
        ]
        return TokenKv(tuple(chosen))

    def write(self, numbers: torch.Tensor, kv: "TokenKv") -> None:
        """Overwrite tokens with others."""
        for own, others in zip(self.layers, kv.layers, strict=True):
            own.keys.index_copy_(0, numbers, others.keys)
            own.values.index_copy_(0, numbers, others.values)

    def to(self, device: torch.device) -> "TokenKv":
        """The same on a device."""
        return TokenKv(tuple([LayerKv(keys.to(device), values.to(device)) for keys, values in self.layers]))


def _empty(tokens: int, layer: AttentionLayer, device: torch.device) -> LayerKv:
    shape = layer.shape
    keys = torch.empty(tokens, shape.heads, shape.key_dim, dtype=layer.dtype, device=device)
    return LayerKv(keys, torch.empty(tokens, shape.heads, shape.value_dim, dtype=layer.dtype, device=device))
