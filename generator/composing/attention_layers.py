"""An engine's attention layers: their keys and values in the KV cache and in pages, and their rotation."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from generator.composing.codec import LayerCodec, LayerKv, Tokens
from generator.composing.rotation import Rotation
from generator.connector.blocks.paged_blocks import LayerPlaces
from protocol.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

_ROTATIONS = frozenset(
    {
        "RotaryEmbedding",
        "LinearScalingRotaryEmbedding",
        "Llama3RotaryEmbedding",
        "NTKScalingRotaryEmbedding",
        "YaRNScalingRotaryEmbedding",
    }
)
"""vLLM's rotary embeddings that turn a key by an angle in proportion to its position."""


class AttentionLayer:
    """An attention layer of vLLM: its ``name``, its ``module``, and the ``rotation`` of its keys.

    Its KV cache has ``num_blocks`` blocks of ``shape``, and numbers of ``dtype``.
    """

    def __init__(self, places: LayerPlaces, module: Any, rotation: Rotation, num_blocks: int) -> None:  # noqa: ANN401
        self.name = places.name
        self.module = module
        self.rotation = rotation
        self.shape = places.shape
        cache: torch.Tensor = module.kv_cache
        self.dtype = cache.dtype
        # Backends put the blocks first, or second behind K and V.
        self._cache = cache.movedim(list(cache.shape).index(num_blocks), 0)
        self._in_page = LayerCodec(places.shape, places.in_page, cache.device)
        self._in_block = LayerCodec(places.shape, places.in_block, cache.device)

    def decoded(self, pages: torch.Tensor, tokens: Tokens) -> LayerKv:
        """Keys and values of ``tokens`` out of ``pages`` [pages, page_bytes]."""
        return self._in_page.decode(pages.view(self._cache.dtype), tokens)

    def keys(self, blocks: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """Keys of ``tokens`` [tokens, heads, key_dim] out of ``blocks`` of the KV cache."""
        return self._in_block.keys(self._cache.index_select(0, blocks).flatten(1), tokens)

    def kv(self, blocks: torch.Tensor, positions: torch.Tensor) -> LayerKv:
        """Keys and values of the tokens at ``positions`` of a prompt in ``blocks`` of the KV cache, in their order."""
        # Reading all of a prompt's blocks for a few tokens takes longer than computing them.
        tokens = self.shape.tokens
        read, place = torch.unique(positions // tokens, return_inverse=True)
        numbers = self._cache.index_select(0, blocks[read]).flatten(1)
        return self._in_block.decode(numbers, place * tokens + positions % tokens)

    def write(self, kv: LayerKv, slots: torch.Tensor) -> None:
        """Write tokens' keys and values into their slots of the KV cache."""
        # Kernels need a head's numbers side by side, and torch may lay out the result of an operation otherwise.
        keys, values = kv.keys.contiguous(), kv.values.contiguous()
        self.module.impl.do_kv_cache_update(self.module, keys, values, self.module.kv_cache, slots)


def slots_of(positions: torch.Tensor, blocks: torch.Tensor, page_tokens: int) -> torch.Tensor:
    """The KV cache's slots of tokens at ``positions`` of a sequence in ``blocks`` of ``page_tokens`` slots."""
    return blocks[positions // page_tokens].long() * page_tokens + positions % page_tokens


def attention_layers(
    model: "nn.Module", registered: Mapping[str, Any], places: Sequence[LayerPlaces], num_blocks: int
) -> list[AttentionLayer]:
    """The attention layers of a model, with the modules that are ``registered`` with vLLM by their names.

    Raises ConfigError if their keys cannot be rotated to other positions.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    rotations: dict[int, Rotation] = {}
    layers = []
    for layer in places:
        embedding = _rotary_embedding(layer.name, modules)
        if id(embedding) not in rotations:
            # Computed again, because vLLM keeps it in the precision of the model.
            cos_sin = embedding._compute_cos_sin_cache().to(registered[layer.name].kv_cache.device)
            rotations[id(embedding)] = Rotation(cos_sin, neox=embedding.is_neox_style)
        layers.append(AttentionLayer(layer, registered[layer.name], rotations[id(embedding)], num_blocks))
    return layers


def _rotary_embedding(layer: str, modules: "Mapping[str, nn.Module]") -> Any:  # noqa: ANN401  # vLLM is untyped here
    """The rotary embedding that stands nearest to an attention layer in the model."""
    within = layer
    found: dict[int, Any] = {}
    while within and not found:
        within = within.rpartition(".")[0]
        found = {
            id(module): module
            for name, module in modules.items()
            if name.startswith(f"{within}.") and hasattr(module, "cos_sin_cache")
        }
    if len(found) != 1:
        raise _refusal(layer, "RAGTree cannot find out how it rotates its keys")
    embedding = found.popitem()[1]
    if type(embedding).__name__ not in _ROTATIONS:
        raise _refusal(layer, f"its keys have positions of vLLM's kind {type(embedding).__name__}")
    return embedding


def _refusal(layer: str, why: str) -> ConfigError:
    return ConfigError(f"the KV of layer {layer} cannot be composed: {why}; set controller.reuse to exact", "reuse")
