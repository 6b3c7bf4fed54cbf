"""A small KV cache with two layers."""

import torch

from generator.connector.blocks.cpu_blocks import CpuBlocks
from generator.connector.blocks.layout_map import KvShape
from generator.connector.blocks.paged_blocks import EngineCache
from protocol.kv import Paging


def small_cache(blocks: int, tokens: int, heads: int, dim: int, dtype: torch.dtype) -> CpuBlocks:
    """Two layers of shape [blocks, 2, heads, tokens, dim] with random numbers. The second one has one more head."""
    caches = {
        name: torch.randint(-100, 100, (blocks, 2, layer_heads, tokens, dim)).to(dtype)
        for name, layer_heads in (("first", heads), ("second", heads + 1))
    }

    return CpuBlocks(
        EngineCache(
            caches, blocks, Paging(tokens), lambda name: Writer(KvShape(tokens, caches[name].shape[2], dim, dim))
        )
    )


class Writer:
    """Writes into a cache of shape [1, 2, heads, tokens, dim]."""

    def __init__(self, shape: KvShape) -> None:
        self.shape = shape
        self.quantised = None

    def write(self, cache: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        cache[0, 0], cache[0, 1] = keys.transpose(0, 1), values.transpose(0, 1)
