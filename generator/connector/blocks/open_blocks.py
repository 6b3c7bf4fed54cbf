"""Asks vLLM for a KV cache in which a block's bytes of all layers are adjacent, and opens the blocks of what it makes.

Then a page is one copy. There are two ways to ask. In vLLM 0.32, a connector names a layout for the whole cache, which
vLLM uses if the model's attention backend supports it. In vLLM 0.26, it prefers blocks across layers, and is given one
tensor for all layers.
"""

from typing import TYPE_CHECKING

import torch
from vllm.platforms import current_platform

from generator.connector.blocks.cpu_blocks import CpuBlocks, NeutralCpuBlocks
from generator.connector.blocks.cuda_blocks import CudaBlocks, NeutralCudaBlocks
from generator.connector.blocks.cuda_copies import CudaCopies
from generator.connector.blocks.paged_blocks import EngineCache, PagedBlocks
from protocol.errors import ConfigError

if TYPE_CHECKING:
    from vllm.v1.attention.backend import AttentionBackend
    from vllm.v1.kv_cache_interface import KVCacheConfig

try:
    from vllm.v1.kv_cache_layout import KVCacheLayout
except ImportError:
    KVCacheLayout = None


def open_blocks(cache: EngineCache, neutral: bool) -> PagedBlocks:
    """The blocks of a cache, whose pages have the ``neutral`` order or else the engine's own. Raises ConfigError."""
    if neutral and len(cache.paging.groups) > 1:
        raise ConfigError(
            "pages of a model whose layers keep different kinds of KV have no neutral order: "
            "set generator.kv.page_layout to engine"
        )
    device = next(iter(cache.layers.values())).device
    if device.type == "cuda":
        return (NeutralCudaBlocks if neutral else CudaBlocks)(cache, CudaCopies(device))
    return (NeutralCpuBlocks if neutral else CpuBlocks)(cache)


def prefers_contiguous_blocks() -> bool:
    """Whether adjacent layers make copies faster. On a CPU they do not, and its attention backend lacks them."""
    return bool(current_platform.is_cuda())


def required_layout() -> str | None:
    """The layout to ask for by name: blocks (B) outermost, each with its layers (L). None leaves it to vLLM."""
    return KVCacheLayout.BLHNC.name if KVCacheLayout is not None and prefers_contiguous_blocks() else None


def layers_of(
    cache: torch.Tensor, backend: "type[AttentionBackend]", kv_cache_config: "KVCacheConfig"
) -> dict[str, torch.Tensor]:
    """The layers' caches within one tensor for all layers, by name."""
    order = backend.get_kv_cache_stride_order(include_num_layers_dimension=True)
    layers = cache.permute([order.index(dim) for dim in range(len(order))])
    names = [tensor.shared_by for tensor in kv_cache_config.kv_cache_tensors]
    return {name: layer for layer, sharing in zip(layers, names, strict=True) for name in sharing}
