"""Frees blocks early, before requests run out of them."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from generator.connector.scheduler.gpu_tier import GpuTier
from generator.connector.scheduler.kept_windows import KeptWindows
from generator.connector.scheduler.planned_request import PlannedRequest
from protocol.kv import PageGroup, Paging

if TYPE_CHECKING:
    from vllm.v1.request import Request

_MOST_SPARE = 64


class BlockRelief:
    """Releases held nodes when a running request would be preempted, or a waiting one starve, for want of blocks.

    The engine takes at most ``most_requests`` requests and ``most_tokens`` tokens in one step, and has at most
    ``in_flight_tokens`` of them under way.
    """

    def __init__(
        self,
        gpu: GpuTier,
        windows: KeptWindows,
        paging: Paging,
        most_requests: int,
        most_tokens: int,
        in_flight_tokens: int,
    ) -> None:
        self._gpu = gpu
        self._windows = windows
        self._paging = paging
        self._most_requests = most_requests
        self._most_tokens = most_tokens
        # How many blocks of each group a request has at once, if not all.
        self._most_blocks = [
            _most_blocks(group, paging.group_tokens(number), in_flight_tokens)
            for number, group in enumerate(paging.groups)
        ]
        self._spare: deque[str] = deque(maxlen=_MOST_SPARE)

    def set_spare(self, keys: Iterable[str]) -> None:
        """Set the nodes to release first, in this order. At most 64 are remembered."""
        self._spare.clear()
        self._spare.extend(keys)

    def relieve(
        self,
        scheduled: Mapping[str, int],
        requests: "Mapping[str, Request]",
        states: Mapping[str, PlannedRequest],
        loading: Mapping[str, object],
    ) -> list[str]:
        """Release as many nodes as needed for the next step. Returns their keys.

        If that is not enough, windows that requests have kept of their documents go, too: the documents of the last
        requests are not kept then. ``scheduled`` are the tokens of this step by request, ``requests`` all requests that
        have not ended, in the order of their arrival, and ``loading`` those whose blocks are being loaded.
        """
        wanted = len(scheduled) * len(self._paging.groups) + 1
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
        released = self._gpu.relieve(wanted, self._spare, in_use)
        for state in reversed(list(states.values())):
            if self._gpu.pool.get_num_free_blocks() >= wanted:
                break
            self._windows.give_back(state)
        return released

    def _missing(self, request: "Request", state: PlannedRequest | None, keeps_blocks: bool = True) -> int:
        """The number of blocks a request still has to get: all, less those it has or that are held.

        ``keeps_blocks`` says whether it still has the blocks that its state knows.
        """
        return sum(
            self._missing_in(group, most, request, state, keeps_blocks) for group, most in enumerate(self._most_blocks)
        )

    def _missing_in(
        self, group: int, most: int | None, request: "Request", state: PlannedRequest | None, keeps_blocks: bool
    ) -> int:
        size = self._paging.group_tokens(group)
        total: int = -(-request.num_tokens // size)
        computed: int = request.num_computed_tokens
        has = computed // size if state is None else len(state.blocks.groups[group]) if keeps_blocks else 0
        if most is not None:
            in_window = has - self._paging.groups[group].first_attended(computed) // size
            return max(0, min(total - has, most - max(0, in_window)))
        return max(0, total - max(has, self._held_tokens(state) // size if state is not None else 0))

    def _held_tokens(self, state: PlannedRequest) -> int:
        """The tokens before the first node of a plan that is not held."""
        tokens = 0
        for node in state.nodes:
            if node.key not in self._gpu:
                break
            tokens = node.prefix_tokens + node.tokens
        return tokens


def _most_blocks(group: PageGroup, tokens: int, in_flight_tokens: int) -> int | None:
    """The most blocks of so many ``tokens`` that a request has of a group at once; None for all of its tokens'."""
    if group.states:
        # That of the state, of the one before it, and of one that some layers keep at the end of the prompt.
        return 3
    return -(-(group.window + in_flight_tokens) // tokens) + 1 if group.window else None
