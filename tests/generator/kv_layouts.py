"""Small KV caches in the layouts of vLLM's attention backends."""

from math import prod

import torch

from generator.connector.blocks.layout_map import KvShape

LAYERS, BLOCKS, HEADS, TOKENS, DIM = 3, 7, 2, 4, 8

PACKED = {
    "LBNHC": (0, 1, 3, 2, 4),
    "LBHNC": (0, 1, 2, 3, 4),
    "LHBNC": (0, 2, 1, 3, 4),
    "BLHNC": (1, 0, 2, 3, 4),
    "BLNHC": (1, 0, 3, 2, 4),
    "BHLNC": (1, 2, 0, 3, 4),
}
"""vLLM's names: the order in memory of layers, blocks, heads, tokens (N), and K and V of one head (C)."""

SPLIT = ["blocks, K and V", "K and V, blocks"]
"""Layouts with a tensor a layer and a dimension for K and V."""

LAYOUTS = [*PACKED, *SPLIT]


def caches_in(layout: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Caches of three layers, filled with different numbers."""
    if layout in PACKED:
        order = PACKED[layout]
        shape = (LAYERS, BLOCKS, HEADS, TOKENS, 2 * DIM)
        memory = torch.arange(prod(shape)).remainder(241).to(dtype).view([shape[dim] for dim in order])
        layers = list(memory.permute([order.index(dim) for dim in range(5)]))
    else:
        shape = (BLOCKS, 2, TOKENS, HEADS, DIM) if layout == SPLIT[0] else (2, BLOCKS, TOKENS, HEADS, DIM)
        layers = [(torch.arange(prod(shape)) + layer).remainder(241).to(dtype).view(shape) for layer in range(LAYERS)]
    return {f"layer {number}": layer for number, layer in enumerate(layers)}


class Writer:
    """Writes into a cache of one block, as a backend does."""

    shape = KvShape(TOKENS, HEADS, DIM, DIM)
    quantised = None

    def write(self, cache: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        if cache.dim() == 4:
            cache[0, ..., :DIM], cache[0, ..., DIM:] = keys.transpose(0, 1), values.transpose(0, 1)
        else:
            parts = cache.view(2, TOKENS, HEADS, DIM)
            parts[0], parts[1] = keys, values


def writer_of(_name: str) -> Writer:
    """The same writer for all layers."""
    return Writer()


def blocks_first(layout: str, cache: torch.Tensor) -> torch.Tensor:
    """A layer's cache with its blocks as the first dimension."""
    return cache.movedim(1, 0) if layout == SPLIT[1] else cache


def filled_alike(layout: str, dtype: torch.dtype, seed: int) -> dict[str, torch.Tensor]:
    """Caches in which a backend has written the same keys and values, drawn by ``seed``, whatever the layout."""
    caches = caches_in(layout, dtype)
    draws = torch.Generator().manual_seed(seed)
    for cache in caches.values():
        for block in range(BLOCKS):
            numbers = torch.randint(-99, 100, (2, TOKENS, HEADS, DIM), generator=draws).to(dtype)
            dim = 1 if layout == SPLIT[1] else 0
            Writer().write(cache.narrow(dim, block, 1), *numbers)
    return caches
