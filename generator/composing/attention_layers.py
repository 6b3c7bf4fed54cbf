"""An engine's attention layers: their keys and values in the KV cache and in pages, and their rotation.

The attention backend keeps keys and values in any order. Rotation moves keys to other positions (RoPE: Su et al. 2021,
section 3.2).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from vllm import _custom_ops as kernels
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.platforms import current_platform

from generator.connector.blocks.layout_map import KvShape, axes_of
from generator.connector.blocks.paged_blocks import LayerPlaces
from protocol.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

Tokens: TypeAlias = slice | torch.Tensor
"""Which tokens of blocks are read, counted from the first block's first one."""
MOST_ERROR = 0.03
"""Of a rotation that is right. Rounding to bfloat16 makes 0.01, a wrong rotation more than 1."""
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


class LayerKv(NamedTuple):
    """A layer's ``keys`` [tokens, heads, key_dim] and ``values`` [tokens, heads, value_dim]."""

    keys: torch.Tensor
    values: torch.Tensor


class LayerCodec:
    """Decodes a layer's blocks, whose keys and values have ``shape``.

    ``elements`` are the places of a block's numbers, counted in elements: all keys, then all values, both in C order.
    The engine's blocks have learnt them from the attention backend.
    """

    def __init__(self, shape: KvShape, elements: NDArray[np.uint32], device: torch.device) -> None:
        keys = elements[: shape.keys].reshape(shape.tokens, shape.heads, shape.key_dim)
        values = elements[shape.keys :].reshape(shape.tokens, shape.heads, shape.value_dim)
        self._keys = _Part(keys, device)
        self._values = _Part(values, device)

    def decode(self, blocks: torch.Tensor, tokens: Tokens) -> LayerKv:
        """The keys and values of ``tokens`` out of ``blocks`` [blocks, elements]."""
        return LayerKv(self._keys.read(blocks, tokens), self._values.read(blocks, tokens))

    def keys(self, blocks: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """Only the keys, as ``decode`` gives them."""
        return self._keys.read(blocks, tokens)


class _Part:
    """Reads a block's keys, or its values, whose numbers lie at ``elements`` [tokens, heads, dims]."""

    def __init__(self, elements: NDArray[np.uint32], device: torch.device) -> None:
        self._shape = elements.shape
        places = elements.astype(np.int64)
        self._axes = axes_of(places)
        self._places = torch.from_numpy(places.reshape(-1)).to(device) if self._axes is None else None

    def read(self, blocks: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """The numbers of ``tokens`` of ``blocks`` [blocks, elements], shape [tokens, heads, dims]."""
        if self._axes is None:
            assert self._places is not None
            numbers = blocks.index_select(1, self._places)
        else:
            first, sizes, strides = self._axes
            numbers = blocks.as_strided(
                (len(blocks), *sizes), (blocks.stride(0), *strides), int(blocks.storage_offset()) + first
            )
        of_all = numbers.reshape(-1, *self._shape[1:])
        # On a CPU, indexing with a tensor takes several times as long.
        return of_all[tokens] if isinstance(tokens, slice) else of_all.index_select(0, tokens)


class Rotation:
    """Rotates keys by whole numbers of positions.

    A key at position p is the unrotated key turned by the angle p f in each pair of dimensions, f being the pair's
    frequency. So turning it by d f moves it to position p + d. ``cos_sin`` [positions, rotary_dim] has the cosines and
    sines of each position's angles, and row d those that move a key by d. The first ``rotary_dim`` dimensions of a
    key are turned. The two of a pair lie half of that apart (``neox``), or side by side.
    """

    def __init__(self, cos_sin: torch.Tensor, neox: bool) -> None:
        # Some variants (YaRN) also scale keys. They are scaled once, where they are computed.
        cos, sin = cos_sin.float().chunk(2, dim=-1)
        scale = torch.hypot(cos[:1], sin[:1])
        cos, sin = cos / scale, sin / scale
        backwards, forwards = torch.cat([cos, -sin], -1), torch.cat([cos, sin], -1)
        self._cos_sin = torch.cat([backwards.flip(0), forwards[1:]])
        self._still = len(cos) - 1
        self._neox = neox

    def moved(self, keys: torch.Tensor, by: int | torch.Tensor) -> torch.Tensor:
        """``keys`` [tokens, heads, key_dim], moved by this many positions, forwards or backwards.

        If ``by`` is a tensor [tokens], it has a number for each token.
        """
        if isinstance(by, int):
            if by == 0:
                return keys
            by = torch.full((len(keys),), by, device=keys.device)
        # vLLM's own kernel takes a seventh of the time that a product with a matrix does. It works in place.
        moved = keys.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        rows, width = by + self._still, keys.shape[-1]
        if keys.device.type == current_platform.device_type:
            kernels.rotary_embedding(rows, moved.flatten(1), None, width, self._cos_sin, self._neox)
        else:
            # The auxiliary model's keys beside an engine on a GPU, whose vLLM has no kernel for a CPU.
            turned = self._cos_sin.shape[-1]
            moved, _ = RotaryEmbedding.forward_static(rows, moved, None, width, turned, self._cos_sin, self._neox)
        return moved.to(keys.dtype)

    def error(self, keys: torch.Tensor, by: int, expected: torch.Tensor) -> float:
        """How far ``keys``, moved by this many positions, are from those ``expected``, relative to their length."""
        there = expected.float()
        return float((self.moved(keys, by).float() - there).norm() / there.norm())


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
        # Backends put the blocks first, or second after K and V.
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
