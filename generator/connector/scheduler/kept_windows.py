"""What requests' nodes keep of windows and states, from when the engine is there until the nodes are kept as planned.

vLLM takes a block back once the window has passed it, and uses it again. So its blocks are retained before. A state is
overwritten by the next step, and copied before that.
"""

from collections.abc import Mapping
from itertools import chain

from generator.connector.scheduler.gpu_tier import GpuTier
from generator.connector.scheduler.planned_request import PlannedRequest
from generator.connector.scheduler.request_blocks import NULL_BLOCK, in_order
from generator.connector.step_jobs import BlockCopy, Load
from protocol.kv import Paging


class KeptWindows:
    """Retains blocks for the nodes that plans keep. Without windows in the ``paging``, it has nothing to do."""

    def __init__(self, gpu: GpuTier, paging: Paging) -> None:
        self._gpu = gpu
        self._has_windows = paging.has_windows
        self._states: list[BlockCopy] = []

    @property
    def busy(self) -> bool:
        """Whether states wait to be copied."""
        return bool(self._states)

    def take_states(self) -> list[BlockCopy]:
        """The states to copy before the next step computes. Both blocks of each are retained, and to be given back."""
        states, self._states = self._states, []
        return states

    def keep(self, state: PlannedRequest, begin: int, end: int) -> None:
        """Keep the windows of nodes that end after the first ``begin`` tokens and not after the first ``end``.

        The engine has found these tokens, or computes them in the next step. What it has found may have no block in
        front of the request's own window. That is not kept, and neither are states of nodes that end before ``end``.
        """
        if not self._has_windows or state.nodes_kept:
            return
        for node in state.ends_between(begin, end):
            window, states = state.blocks.window_of(node), state.blocks.states_of(node)
            ends_here = node.prefix_tokens + node.tokens == end
            missing = NULL_BLOCK in (*window.values(), *states.values())
            if node.key in state.blocks.windows or missing or (states and not ends_here):
                continue
            copied = self._copied(states)
            if len(copied) == len(states):
                self._gpu.retain(window.values())
                state.blocks.windows[node.key] = in_order(window | copied)

    def _copied(self, states: Mapping[int, int]) -> dict[int, int]:
        """Order copies of states into free blocks. Returns these, retained, by page; none if there are too few."""
        spare = self._gpu.spare_blocks(len(states))
        if len(spare) < len(states):
            return {}
        self._gpu.retain([*states.values(), *spare])
        self._states += [BlockCopy(*pair) for pair in zip(states.values(), spare, strict=True)]
        return dict(zip(states, spare, strict=True))

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
