"""On a GPU, the connector asks for a layout with one slab a block, and finds the blocks in whatever vLLM then makes."""

from math import prod
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

import torch
from kv_layouts import BLOCKS, DIM, HEADS, LAYERS, TOKENS, writer_of
from vllm.platforms import current_platform
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend
from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheTensor, compute_layout_strides, create_kv_cache_views
from vllm.v1.kv_cache_layout import KVCacheLayout

from generator.connector.blocks.cpu_blocks import CpuBlocks
from generator.connector.blocks.layout_map import slabs_of
from generator.connector.blocks.open_blocks import layers_of
from generator.connector.blocks.paged_blocks import EngineCache
from generator.connector.connector import RagtreeConnector
from protocol.kv import Paging


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(current_platform, "is_cuda", lambda: True)


def test_nothing_is_asked_for_on_a_cpu():
    assert RagtreeConnector.get_required_kvcache_layout(None) is None


@pytest.mark.usefixtures("gpu")
def test_the_layout_asked_for_on_a_gpu_is_one_that_flash_attention_supports():
    layout = KVCacheLayout[RagtreeConnector.get_required_kvcache_layout(None)]
    assert layout in get_supported_kv_cache_layouts([FlashAttentionBackend])


@pytest.mark.parametrize("layout", list(KVCacheLayout))
def test_blocks_are_found_in_what_vllm_makes_of_a_layout(layout):
    spec = FullAttentionSpec(block_size=TOKENS, num_kv_heads=HEADS, head_size=DIM, dtype=torch.bfloat16)
    names = [f"layer {number}" for number in range(LAYERS)]
    outer = spec.page_size_bytes * LAYERS if layout.is_block_outermost else None
    strides = compute_layout_strides(spec, BLOCKS, LAYERS, layout, fixed_strides=(None, outer, None, None, None))
    size = spec.page_size_bytes * LAYERS * BLOCKS
    tensor = KVCacheTensor(size=size, layers=names, layer_stride=strides[0], block_stride=strides[1], offset=0)
    memory = torch.randint(0, 100, (size,)).to(torch.int8)
    views = create_kv_cache_views(memory, spec, BLOCKS, layout, tensor)
    blocks = CpuBlocks(EngineCache(dict(zip(names, views, strict=True)), BLOCKS, Paging(TOKENS), writer_of))
    assert blocks.page_bytes == spec.page_size_bytes * LAYERS
    assert (len(slabs_of(views)) == 1) == layout.is_block_outermost


@pytest.mark.parametrize("order", [(1, 0, 3, 2, 4), (1, 2, 0, 3, 4)])
def test_one_tensor_for_all_layers_is_taken_apart_into_layers_with_one_slab_a_block(order):
    shape = (LAYERS, BLOCKS, HEADS, TOKENS, 2 * DIM)
    cache = torch.arange(prod(shape)).view([shape[dim] for dim in order])
    backend = SimpleNamespace(get_kv_cache_stride_order=lambda include_num_layers_dimension: order)
    config = SimpleNamespace(kv_cache_tensors=[SimpleNamespace(shared_by=[f"layer {n}"]) for n in range(LAYERS)])
    layers = layers_of(cache, backend, config)
    assert list(layers) == ["layer 0", "layer 1", "layer 2"]
    index = (1, 4, 1, 2, 5)
    assert layers["layer 1"][index[1:]] == cache[tuple(index[dim] for dim in order)]
    assert len(slabs_of(list(layers.values()))) == 1
