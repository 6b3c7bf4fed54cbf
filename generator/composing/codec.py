"""Reads keys and values out of blocks and pages, in whatever order the attention backend keeps them."""

from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from generator.connector.blocks.axes import axes_of
from generator.connector.blocks.layout_map import KvShape

Tokens: TypeAlias = slice | torch.Tensor
"""Which tokens of blocks are read, counted from the first block's first one."""


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
