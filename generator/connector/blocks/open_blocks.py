"""Opens the blocks of an engine's KV cache, on whichever device they are."""

from collections.abc import Mapping

import torch

from generator.connector.blocks.cpu_blocks import CpuBlocks
from generator.connector.blocks.cuda_blocks import CudaBlocks
from generator.connector.blocks.cuda_copies import CudaCopies
from generator.connector.blocks.neutral_cpu_blocks import NeutralCpuBlocks
from generator.connector.blocks.neutral_cuda_blocks import NeutralCudaBlocks
from generator.connector.blocks.paged_blocks import PagedBlocks, WriterOf


def open_blocks(
    kv_caches: Mapping[str, torch.Tensor], num_blocks: int, page_tokens: int, writer_of: WriterOf, neutral: bool
) -> PagedBlocks:
    """The blocks of ``kv_caches``, whose pages have the ``neutral`` order or else the engine's own.

    The other arguments, and errors, are those of ``PagedBlocks``.
    """
    device = next(iter(kv_caches.values())).device
    if device.type == "cuda":
        on_gpu = NeutralCudaBlocks if neutral else CudaBlocks
        return on_gpu(kv_caches, num_blocks, page_tokens, writer_of, CudaCopies(device))
    on_cpu = NeutralCpuBlocks if neutral else CpuBlocks
    return on_cpu(kv_caches, num_blocks, page_tokens, writer_of)
