"""What requests' nodes keep of sliding windows, from when the engine is there until the nodes are kept as planned.

vLLM takes a block back once the window has passed it, and uses it again. So its blocks are retained before.
"""

from collections.abc import Mapping
from itertools import chain

from generator.connector.scheduler.gpu_tier import GpuTier
from generator.connector.scheduler.planned_request import PlannedRequest
from generator.connector.scheduler.request_blocks import NULL_BLOCK
from generator.connector.step_jobs import Load
from protocol.kv import Paging


class KeptWindows:
    """Retains blocks for the nodes that plans keep. Without windows in the ``paging``, it has nothing to do."""

    def __init__(self, gpu: GpuTier, paging: Paging) -> None:
        self._gpu = gpu
        self._has_windows = paging.has_windows

    def keep(self, state: PlannedRequest, begin: int, end: int) -> None:
        """Keep the windows of nodes that end after ``begin`` tokens and not after ``end``, which are computed next.

        What the engine has found itself may have no block in front of the request's own window. That is not kept.
        """
        if not self._has_windows or state.nodes_kept:
            return
        for node in state.ends_between(begin, end):
            window = tuple(state.blocks.window_of(node).values())
            if node.key not in state.blocks.windows and NULL_BLOCK not in window:
                self._gpu.retain(window)
                state.blocks.windows[node.key] = window

    def load_of(self, state: PlannedRequest, held: Mapping[str, tuple[int, ...]]) -> Load:
        """The load that carries out an offer, with the windows of its nodes. ``held`` has the GPU tier's blocks."""
        spare: list[int] = []

        def take(count: int) -> list[int]:
            blocks = self._gpu.spare_blocks(count)
            spare.extend(blocks)
            return blocks

        load = state.load_of(held, take)
        # Windows of neighbours may share a block, and each gives it back.
        self._gpu.retain(block for block in chain.from_iterable(load.windows.values()) if block not in spare)
        return load

    def loaded(self, load: Load, state: PlannedRequest | None, failed: bool) -> None:
        """Take over the windows of a load that has ended, unless it ``failed`` or its request has ended."""
        for key, window in load.windows.items():
            if state is None or failed or key in state.blocks.windows:
                self._gpu.give_back(window)
            else:
                state.blocks.windows[key] = window

    def give_back(self, state: PlannedRequest) -> None:
        """Keep a request's windows no longer."""
        for window in state.blocks.windows.values():
            self._gpu.give_back(window)
        state.blocks.windows.clear()
