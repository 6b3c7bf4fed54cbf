"""Early release of held nodes, before requests run out of blocks."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from generator.connector.scheduler.gpu_tier import GpuTier
from generator.connector.scheduler.request_state import RequestState

if TYPE_CHECKING:
    from vllm.v1.request import Request

_MOST_SPARE = 64


class BlockRelief:
    """Releases held nodes when a running request would be preempted, or a waiting one starve, for want of blocks.

    The engine takes at most ``most_requests`` requests and ``most_tokens`` tokens in one step.
    """

    def __init__(self, gpu: GpuTier, page_tokens: int, most_requests: int, most_tokens: int) -> None:
        self._gpu = gpu
        self._page_tokens = page_tokens
        self._most_requests = most_requests
        self._most_tokens = most_tokens
        self._spare: deque[str] = deque(maxlen=_MOST_SPARE)

    def set_spare(self, keys: Iterable[str]) -> None:
        """Set the nodes to release first, in this order. At most 64 are remembered."""
        self._spare.clear()
        self._spare.extend(keys)

    def relieve(
        self,
        scheduled: Mapping[str, int],
        requests: "Mapping[str, Request]",
        states: Mapping[str, RequestState],
        loading: Mapping[str, object],
    ) -> list[str]:
        """Release as many nodes as needed for the next step. Returns their keys.

        ``scheduled`` are the tokens of this step by request, ``requests`` all requests that have not ended, in the
        order of their arrival, and ``loading`` those of them whose blocks are being loaded.
        """
        wanted = len(scheduled) + 1
        if len(scheduled) < self._most_requests and sum(scheduled.values()) < self._most_tokens:
            # The step had room left, so a request that was not scheduled waits for blocks. It is the first of those
            # that wait: the engine serves them in the order of their arrival.
            waiting = next((name for name in requests if name not in scheduled and name not in loading), None)
            if waiting is not None:
                # A load in the background also waits for the blocks that prompts under way still have to get.
                # The engine takes the blocks back from a load that failed from the first one on.
                keeps_blocks = bool(requests[waiting].num_computed_tokens)
                wanted += self._missing(requests[waiting], states.get(waiting), keeps_blocks)
                wanted += sum(
                    self._missing(requests[name], states.get(name))
                    for name in (*scheduled, *loading)
                    if name in requests and not requests[name].num_output_tokens
                )
        if self._gpu.pool.get_num_free_blocks() >= wanted:
            return []
        in_use = {key for state in states.values() if not state.reported for key in state.keys}
        return self._gpu.relieve(wanted, self._spare, in_use)

    def _missing(self, request: "Request", state: RequestState | None, keeps_blocks: bool = True) -> int:
        """The number of blocks a request still has to get: all of its own, less those it has or that are held.

        ``keeps_blocks`` says whether it still has the blocks that its state knows.
        """
        total: int = -(-request.num_tokens // self._page_tokens)
        if state is None:
            computed: int = request.num_computed_tokens
            return max(0, total - computed // self._page_tokens)
        return max(0, total - max(len(state.blocks) if keeps_blocks else 0, self._held_blocks(state)))

    def _held_blocks(self, state: RequestState) -> int:
        """The whole blocks in front of the first node of a plan that is not held."""
        tokens = 0
        for node in state.nodes:
            if node.key not in self._gpu:
                break
            tokens = node.prefix_tokens + node.tokens
        return tokens // self._page_tokens
