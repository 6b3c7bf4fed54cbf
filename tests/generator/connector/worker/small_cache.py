"""A small KV cache with two layers."""

import torch

from generator.connector.worker.cpu_blocks import CpuBlocks


def small_cache(blocks: int, tokens: int, heads: int, dim: int, dtype: torch.dtype) -> CpuBlocks:
    """Two layers of shape [blocks, 2, heads, tokens, dim] with random numbers. The second one has one more head."""
    caches = {
        name: torch.randint(-100, 100, (blocks, 2, layer_heads, tokens, dim)).to(dtype)
        for name, layer_heads in (("first", heads), ("second", heads + 1))
    }

    def write_tokens(_name: str, cache: torch.Tensor, count: int) -> None:
        for token in range(count):
            cache[:, :, :, token] = token + 1

    return CpuBlocks(caches, blocks, tokens, write_tokens)
