"""Deletion of documents from the engine's blocks."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from generator.connector.scheduler.gpu_tier import GpuTier
from generator.connector.scheduler.request_state import RequestState
from generator.connector.step_jobs import Purge
from protocol.kv import KvNode


class _Prompt(NamedTuple):
    """Where the documents of a request stand. The request itself is not kept: it would cost its token lists."""

    namespace: str
    path: tuple[str, ...]
    nodes: tuple[KvNode, ...]

    def first_block(self, purge: Purge, page_tokens: int) -> int | None:
        """The index of the first block that holds any of the documents to delete, or None if none does."""
        if not purge.covers(self.namespace, self.path):
            return None
        first = next((node for node in self.nodes if purge.covers(node.namespace, node.path)), None)
        return first.prefix_tokens // page_tokens if first is not None else 0


class BlockOwners:
    """Knows which request last wrote each block that it left, so that a deleted document can be found in free blocks.

    The engine's own prefix cache may still find such blocks by their hashes. Memory is bounded by the number of blocks.
    """

    def __init__(self, gpu: GpuTier, page_tokens: int) -> None:
        self._gpu = gpu
        self._page_tokens = page_tokens
        # By block: the prompt, and the block's index in it.
        self._owners: dict[int, tuple[_Prompt, int]] = {}

    def record(self, state: RequestState, blocks: Sequence[int]) -> None:
        """Record the blocks that a request leaves, at its end or at a preemption."""
        prompt = _prompt(state)
        self._owners.update({block: (prompt, index) for index, block in enumerate(blocks)})

    def forget(self, purge: Purge, running: Collection[RequestState]) -> None:
        """Delete documents, and all that was computed behind them, from the GPU tier and the engine's prefix cache."""
        for key in self._gpu.matching(purge.covers):
            self._gpu.release(key)
        gone: list[int] = []
        for state in running:
            first = _prompt(state).first_block(purge, self._page_tokens)
            if first is not None:
                state.forgotten = True
                gone += state.blocks[first:]
        for block, (prompt, index) in self._owners.items():
            first = prompt.first_block(purge, self._page_tokens)
            if first is not None and index >= first:
                gone.append(block)
        # Requests without a plan are not recorded here. Only a purge of everything covers their blocks.
        self._gpu.evict_hashes(range(self._gpu.pool.num_gpu_blocks) if purge.is_total else gone)
        for block in gone:
            self._owners.pop(block, None)


def _prompt(state: RequestState) -> _Prompt:
    return _Prompt(state.message.namespace, state.message.path, tuple(state.nodes))
