"""Follows which blocks vLLM gives to requests and takes back, step by step."""

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING

from generator.connector.scheduler.gpu_tier import BlockOwners, GpuTier
from generator.connector.scheduler.kept_windows import KeptWindows
from generator.connector.scheduler.planned_request import PlannedRequest

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


class FollowedBlocks:
    """Keeps the ``blocks`` of planned requests, their ``owners``, and the ``windows`` of their nodes up to date."""

    def __init__(self, gpu: GpuTier, owners: BlockOwners, windows: KeptWindows) -> None:
        self._gpu = gpu
        self._owners = owners
        self._windows = windows

    def allocate(self, state: PlannedRequest, blocks: Sequence[Sequence[int]]) -> None:
        """Take all blocks of a request, by group. After a preemption they are others, and the old ones are free."""
        self.leave(state)
        state.blocks.replace(blocks)
        for group, owned in enumerate(state.blocks.groups):
            self._owners.record(state.documents, group, 0, owned, state.offer.local)

    def leave(self, state: PlannedRequest) -> None:
        """Forget the blocks that a request leaves to the pool. Others may find them, unless it is forgotten."""
        if state.forgotten:
            self._gpu.evict_hashes(state.blocks)
        state.blocks.clear()

    def step(self, output: "SchedulerOutput", states: Mapping[str, PlannedRequest], loading: Container[str]) -> None:
        """Take the blocks that requests get and leave in a step, and keep the windows that it passes.

        ``loading`` are the requests with a load under way.
        """
        # First, because a request that a reset preempts may be scheduled, or begin to load, in the same step.
        for request_id in output.preempted_req_ids or ():
            if request_id in states and request_id not in loading:
                self.leave(states[request_id])
        for new in output.scheduled_new_reqs:
            state = states.get(new.req_id)
            if state is not None:
                state.blocks.replace(new.block_ids)
                begin = new.num_computed_tokens
                self._windows.keep(state, begin, begin + output.num_scheduled_tokens[new.req_id])
        running = output.scheduled_cached_reqs
        for request_id, block_ids, begin in zip(
            running.req_ids, running.new_block_ids, running.num_computed_tokens, strict=True
        ):
            state = states.get(request_id)
            if state is None:
                continue
            if block_ids is not None and request_id in running.resumed_req_ids:
                state.blocks.replace(block_ids)
            elif block_ids is not None:
                for group, (known, new_blocks) in enumerate(zip(state.blocks.groups, block_ids, strict=True)):
                    self._owners.record(state.documents, group, len(known), new_blocks)
                state.blocks.extend(block_ids)
            self._windows.keep(state, begin, begin + output.num_scheduled_tokens[request_id])
