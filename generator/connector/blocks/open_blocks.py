"""Opens the blocks of an engine's KV cache, on whichever device they are."""

from collections.abc import Mapping

import torch

from generator.connector.blocks.cpu_blocks import CpuBlocks
from generator.connector.blocks.cuda_blocks import CudaBlocks
from generator.connector.blocks.cuda_copies import CudaCopies
from generator.connector.blocks.paged_blocks import PagedBlocks, WriterOf


def open_blocks(
    kv_caches: Mapping[str, torch.Tensor], num_blocks: int, page_tokens: int, writer_of: WriterOf
) -> PagedBlocks:
    """The blocks of ``kv_caches``. Arguments and errors are those of ``PagedBlocks``."""
    device = next(iter(kv_caches.values())).device
    if device.type == "cuda":
        return CudaBlocks(kv_caches, num_blocks, page_tokens, writer_of, CudaCopies(device))
    return CpuBlocks(kv_caches, num_blocks, page_tokens, writer_of)
