"""Reads keys and values out of blocks and pages, in whatever order the attention backend keeps them."""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

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
        return LayerKv(self.keys(blocks, tokens), self._values.read(blocks)[tokens])

    def keys(self, blocks: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """Only the keys, as ``decode`` gives them."""
        return self._keys.read(blocks)[tokens]


class _Part:
    """Reads a block's keys, or its values, whose numbers lie at ``elements`` [tokens, heads, dims]."""

    def __init__(self, elements: NDArray[np.uint32], device: torch.device) -> None:
        self._shape = elements.shape
        places = elements.astype(np.int64)
        self._first = int(places[0, 0, 0])
        self._axes = _axes(places)
        # A copy along axes is several times faster than one by places.
        self._places = torch.from_numpy(places.reshape(-1)).to(device) if self._axes is None else None

    def read(self, blocks: torch.Tensor) -> torch.Tensor:
        """The numbers of all tokens of ``blocks`` [blocks, elements], shape [tokens, heads, dims]."""
        if self._axes is None:
            assert self._places is not None
            numbers = blocks.index_select(1, self._places)
        else:
            sizes, strides = zip(*self._axes, strict=True)
            numbers = blocks.as_strided(
                (len(blocks), *sizes), (blocks.stride(0), *strides), int(blocks.storage_offset()) + self._first
            )
        return numbers.reshape(-1, *self._shape[1:])


def _axes(places: NDArray[np.int64]) -> list[tuple[int, int]] | None:
    """Sizes and strides of axes along which ``places`` lie, in C order; None if they lie along none."""
    first = places[0, 0, 0]
    tokens, heads, dims = places[:, 0, 0] - first, places[0, :, 0] - first, places[0, 0, :] - first
    if not np.array_equal(places - first, tokens[:, None, None] + heads[:, None] + dims):
        return None
    axes = [list(_nested(offsets)) for offsets in (tokens, heads, dims)]
    sizes = [np.prod([size for size, _ in nested]) for nested in axes]
    return [axis for nested in axes for axis in nested] if tuple(sizes) == places.shape else None


def _nested(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Sizes and strides of nested axes whose offsets these are, outermost first; too few if there are none."""
    size = len(offsets)
    if size == 1:
        yield 1, 0
        return
    stride = int(offsets[1])
    steps = np.diff(offsets) == stride
    run = size if steps.all() else int(np.argmin(steps)) + 1
    if run == size:
        yield size, stride
    elif run > 1 and size % run == 0:
        rows = offsets.reshape(-1, run)
        if np.array_equal(rows, rows[:, :1] + rows[:1]):
            yield from _nested(rows[:, 0])
            yield run, stride
