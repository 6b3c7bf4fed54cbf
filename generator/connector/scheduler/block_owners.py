"""Deletion of documents from the engine's blocks."""

from collections.abc import Collection, Sequence

from generator.connector.scheduler.gpu_tier import GpuTier
from generator.connector.scheduler.request_state import RequestState
from generator.connector.step_jobs import Purge


class BlockOwners:
    """Knows which ended request last wrote each block, so that a deleted document can be found in free blocks.

    The engine's own prefix cache may still find such blocks by their hashes. Memory is bounded by the number of blocks.
    """

    def __init__(self, gpu: GpuTier, page_tokens: int) -> None:
        self._gpu = gpu
        self._page_tokens = page_tokens
        # By block: the request, and the block's index in the prompt.
        self._owners: dict[int, tuple[RequestState, int]] = {}

    def record(self, state: RequestState, blocks: Sequence[int]) -> None:
        """Record the blocks of a request that has ended."""
        self._owners.update({block: (state, index) for index, block in enumerate(blocks)})

    def forget(self, purge: Purge, running: Collection[RequestState]) -> None:
        """Delete documents, and all that was computed behind them, from the GPU tier and the engine's prefix cache."""
        for key in self._gpu.matching(purge.covers):
            self._gpu.release(key)
        gone: list[int] = []
        for state in running:
            first = self._first_block(state, purge)
            if first is not None:
                state.forgotten = True
                gone += state.blocks[first:]
        for block, (owner, index) in self._owners.items():
            first = self._first_block(owner, purge)
            if first is not None and index >= first:
                gone.append(block)
        # Requests without a plan are not recorded here. Only a purge of everything covers their blocks.
        self._gpu.evict_hashes(gone if purge.contents is not None else range(self._gpu.pool.num_gpu_blocks))
        for block in gone:
            self._owners.pop(block, None)

    def _first_block(self, state: RequestState, purge: Purge) -> int | None:
        """The index of the first block of a prompt that holds any of the documents, or None if none does."""
        if not purge.covers(state.message.namespace, state.message.path):
            return None
        first = next((node for node in state.nodes if purge.covers(node.namespace, node.path)), None)
        return first.prefix_tokens // self._page_tokens if first is not None else 0
