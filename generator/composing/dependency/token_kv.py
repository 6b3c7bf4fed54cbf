"""The KV of single tokens in all layers, apart from an engine's blocks."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from generator.composing.attention_layers import AttentionLayer
from generator.composing.codec import LayerKv


class TokenKv(NamedTuple):
    """KV of the same tokens in each of the ``layers``."""

    layers: tuple[LayerKv, ...]

    @classmethod
    def empty(cls, tokens: int, layers: Sequence[AttentionLayer], device: torch.device) -> "TokenKv":
        """Memory for ``tokens`` in these layers, not yet written."""
        return cls(tuple([_empty(tokens, layer, device) for layer in layers]))

    @property
    def tokens(self) -> int:
        """How many tokens they are."""
        return len(self.layers[0].keys)

    @classmethod
    def joined(cls, parts: Sequence["TokenKv"]) -> "TokenKv":
        """The tokens of one or several parts, in their order."""
        if len(parts) == 1:
            return parts[0]
        of_layers = zip(*(part.layers for part in parts), strict=True)
        return cls(
            tuple([LayerKv(torch.cat([kv.keys for kv in of]), torch.cat([kv.values for kv in of])) for of in of_layers])
        )

    def rows(self, numbers: torch.Tensor) -> "TokenKv":
        """A copy of the rows with these numbers."""
        chosen = [
            LayerKv(keys.index_select(0, numbers), values.index_select(0, numbers)) for keys, values in self.layers
        ]
        return TokenKv(tuple(chosen))

    def write(self, numbers: torch.Tensor, kv: "TokenKv") -> None:
        """Write ``kv`` into the rows with these numbers."""
        for own, others in zip(self.layers, kv.layers, strict=True):
            own.keys.index_copy_(0, numbers, others.keys)
            own.values.index_copy_(0, numbers, others.values)

    def to(self, device: torch.device) -> "TokenKv":
        """The same KV on a device; itself if it is there already."""
        return TokenKv(tuple([LayerKv(keys.to(device), values.to(device)) for keys, values in self.layers]))


def _empty(tokens: int, layer: AttentionLayer, device: torch.device) -> LayerKv:
    shape = layer.shape
    keys = torch.empty(tokens, shape.heads, shape.key_dim, dtype=layer.dtype, device=device)
    return LayerKv(keys, torch.empty(tokens, shape.heads, shape.value_dim, dtype=layer.dtype, device=device))
