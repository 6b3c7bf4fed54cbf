"""Lets an engine on a CPU lay out its KV cache in another way than vLLM has it there. Engines import this file."""

import os

from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.kv_cache_layout import KVCacheLayout

from generator.connector.blocks.cpu_blocks import CpuBlocks
from generator.connector.worker_connector import WorkerExtension

LAYOUT = "KV_CACHE_LAYOUT_OF_TESTS"
"""The environment variable with vLLM's name of the layout. The kernels need only a head's numbers side by side."""


class ChosenLayout(WorkerExtension):
    """The product's extension of vLLM's worker, which also says where the engine's memory has keys and values."""

    def own_layout(self) -> list[str]:
        """A digest for each layer."""
        return [layer.digest for layer in CpuBlocks.places(get_kv_transfer_group()._blocks)]


if LAYOUT in os.environ:
    CPUAttentionBackend.supported_kv_cache_layouts = classmethod(lambda _: (KVCacheLayout[os.environ[LAYOUT]],))
