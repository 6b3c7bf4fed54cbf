"""An engine with vLLM's offloading connector on a CPU: all of it is vLLM's own, except the worker that copies bytes.

``CPUOffloadingSpec`` refuses to create its worker on a CPU, once the engine has its KV cache.
"""

from pathlib import Path
from typing import Any

import torch
from vllm import LLM, SamplingParams
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

CHUNK_TOKENS = 32
# Keys and values of SmolLM2-135M in float32: 30 layers, 3 heads of dimension 64.
CHUNK_BYTES = CHUNK_TOKENS * 30 * 2 * 3 * 64 * 4


class CopyingWorker(OffloadingWorker):
    """Copies blocks synchronously between the engine's cache and plain memory."""

    def __init__(self, caches: CanonicalKVCaches, chunks: int) -> None:
        self._device = [cache.tensor for cache in caches.tensors]
        self._host = [torch.empty((chunks, *tensor.shape[1:]), dtype=tensor.dtype) for tensor in self._device]
        self._finished: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        return self._copy(job_id, self._device, src_spec, self._host, dst_spec)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        return self._copy(job_id, self._host, src_spec, self._device, dst_spec)

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        pass

    def _copy(
        self,
        job_id: int,
        sources: list[torch.Tensor],
        source: LoadStoreSpec,
        targets: list[torch.Tensor],
        target: LoadStoreSpec,
    ) -> bool:
        assert isinstance(source, BlockIDsLoadStoreSpec)
        assert isinstance(target, BlockIDsLoadStoreSpec)
        here, there = torch.from_numpy(source.block_ids).long(), torch.from_numpy(target.block_ids).long()
        for tensor, copy in zip(sources, targets, strict=True):
            copy[there] = tensor[here]
        self._finished.append(TransferResult(job_id, success=True))
        return True


class CopyingSpec(CPUOffloadingSpec):
    """vLLM's spec, including its manager and policy, with a worker that runs on a CPU."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        return CopyingWorker(kv_caches, self.num_chunks)


def ask(folder: Path, blocks: int, extra_config: dict[str, Any], prompts: list[list[int]]) -> list[tuple[int, Any]]:
    """Ask a new engine with ``blocks`` KV blocks one prompt at a time. Returns each one's cached tokens and answer."""
    llm = LLM(
        model=str(folder),
        dtype="float32",
        max_model_len=512,
        max_num_seqs=1,
        max_num_batched_tokens=512,
        enforce_eager=True,
        block_size=CHUNK_TOKENS,
        num_gpu_blocks_override=blocks,
        kv_transfer_config={
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": extra_config,
        },
    )
    params = SamplingParams(max_tokens=4, temperature=0)
    outputs = [llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)[0] for prompt in prompts]
    return [(output.num_cached_tokens, tuple(output.outputs[0].token_ids)) for output in outputs]
