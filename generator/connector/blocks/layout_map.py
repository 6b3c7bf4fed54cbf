"""Where an attention backend keeps the keys and values of a block's tokens, learnt from the backend itself.

Each number of the keys and values is written as its own index, so each element of the block tells what it is. Not every
dtype represents an index exactly. So it is written digit by digit, in several passes.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.errors import ConfigError

_BASE = 64
"""Of the digits. They are written as 1 to 64, which bfloat16, float16 and int8 represent exactly; 0 means unwritten."""


class KvShape(NamedTuple):
    """A layer's keys, shape [tokens, heads, key_dim], and values, shape [tokens, heads, value_dim], of one block."""

    tokens: int
    heads: int
    key_dim: int
    value_dim: int

    @property
    def keys(self) -> int:
        """How many numbers the keys have."""
        return self.tokens * self.heads * self.key_dim

    @property
    def numbers(self) -> int:
        """How many numbers keys and values have together."""
        return self.keys + self.tokens * self.heads * self.value_dim


class BlockWriter(Protocol):
    """Writes keys and values of ``shape`` into a cache of one block, as an attention backend does."""

    shape: KvShape

    def write(self, cache: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write all tokens of the block."""


class LayerWriter:
    """Writes with the attention backend of a ``layer`` of vLLM, whose blocks have ``tokens`` tokens."""

    def __init__(self, layer: Any, tokens: int) -> None:  # noqa: ANN401  # vLLM is untyped here
        self.shape = KvShape(tokens, layer.num_kv_heads, layer.head_size, layer.head_size_v)
        self._layer = layer

    def write(self, cache: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write all tokens of the block."""
        slots = torch.arange(self.shape.tokens, dtype=torch.int64, device=cache.device)
        self._layer.impl.do_kv_cache_update(self._layer, keys, values, cache, slots)


class LayoutMap:
    """What each element of a layer's part of a page is.

    ``indexes`` are those of the numbers, as ``learn_indexes`` returns them. ``token_of`` has the token of each element,
    and ``element_of`` the element of each number.
    """

    def __init__(self, shape: KvShape, indexes: NDArray[np.uint32]) -> None:
        self.shape = shape
        self.element_of: NDArray[np.uint32] = np.argsort(indexes).astype(np.uint32)
        in_values = indexes >= shape.keys
        of_token = np.where(in_values, shape.heads * shape.value_dim, shape.heads * shape.key_dim)
        self.token_of: NDArray[np.uint16] = ((indexes - in_values * shape.keys) // of_token).astype(np.uint16)


def learn_indexes(name: str, cache: torch.Tensor, page: torch.Tensor, writer: BlockWriter) -> NDArray[np.uint32]:
    """For each element of ``page``, the index of the number that it holds: keys first, then values, in C order.

    ``cache`` is scratch memory for one block of the layer ``name``. ``page`` is a view of the same memory, with its
    elements in the order in which pages have them. Raises ConfigError if an element holds no number, or not its own.
    """
    shape = writer.shape
    numbers = torch.arange(shape.numbers, device=cache.device)
    indexes = np.zeros(page.numel(), np.int64)
    weight = 1
    while weight < shape.numbers:
        written = (numbers // weight % _BASE + 1).to(cache.dtype)
        keys, values = written[: shape.keys], written[shape.keys :]
        cache.zero_()
        writer.write(
            cache,
            keys.view(shape.tokens, shape.heads, shape.key_dim),
            values.view(shape.tokens, shape.heads, shape.value_dim),
        )
        # An element that is never written gets a negative index.
        indexes += (page.reshape(-1).double().cpu().numpy().astype(np.int64) - 1) * weight
        weight *= _BASE
    if not np.array_equal(np.sort(indexes), np.arange(shape.numbers)):
        raise ConfigError(f"RAGTree cannot find out where the attention backend of layer {name} keeps keys and values")
    return indexes.astype(np.uint32)
