"""The connector's scheduler half: turns plans into jobs for the worker half, and holds what stays in the GPU.

Scheduler-side calls of vLLM's contract end up here, in the engine's own thread. Nothing here decides about caching: the
plan says what is loaded, kept and moved. One thing is decided: held blocks go early when requests would starve.
"""

from collections import deque
from collections.abc import Collection, Sequence
from itertools import count
from typing import TYPE_CHECKING

import structlog

from generator.connector.execution import Execution, Offer
from generator.connector.gpu_tier import GpuTier
from generator.connector.metadata import Load, StepJobs, StepResults, Transfer
from generator.connector.orders import EngineReport, RequestOrders
from protocol.kv import KvMemory, LostCopy, Move, ResidencyReport
from protocol.tiers import Tier

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

log = structlog.get_logger(__name__)


class SchedulerHalf:
    """Executes the plans that requests bring along to an ``instance``, over blocks of ``page_tokens`` tokens."""

    def __init__(self, page_tokens: int, instance: str) -> None:
        self._instance = instance
        self._page_tokens = page_tokens
        self._gpu = GpuTier(page_tokens)
        self._executions: dict[str, Execution] = {}
        self._waiting: dict[str, Request] = {}
        # What lay in a block last: whose prompt, and which of its blocks. Bounded by the number of blocks.
        self._owners: dict[int, tuple[Execution, int]] = {}
        self._numbers = count(1)
        self._loads: list[Load] = []
        self._queued: list[Transfer] = []
        self._under_way: dict[int, Transfer] = {}
        # Orders outside of plans: the transfers that they wait for, and what failed of them.
        self._open_orders: dict[str, tuple[set[int], list[LostCopy]]] = {}
        self._spare: deque[str] = deque(maxlen=64)
        self._ended: dict[str, Execution] = {}
        self._lost: dict[tuple[str, Tier], None] = {}
        self._inquiries: list[str] = []
        self._unanswered: set[str] = set()
        self._held: dict[str, tuple[ResidencyReport, ...]] = {}
        self._memory: KvMemory | None = None

    def bind(self, pool: "BlockPool") -> None:
        """Take the engine's pool of blocks."""
        self._gpu.bind(pool)

    # A request arrives, is matched, gets blocks, runs and ends

    def arrived(self, request: "Request", orders: RequestOrders | None) -> None:
        """Take note of a request and carry out the orders that come with it."""
        self._waiting[request.request_id] = request
        if orders is None:
            return
        numbers = {number for move in orders.moves if (number := self._carry_out(move)) is not None}
        for namespace, content in orders.forget:
            self._forget(namespace, content)
        if orders.spare:
            self._spare.clear()
            self._spare.extend(orders.spare)
        if orders.inquire:
            self.inquire(orders.name)
        if orders.nodes:
            self._executions[request.request_id] = Execution(request, orders, self._page_tokens)
        else:
            self._open_orders[orders.name] = (numbers, [])

    def matched(self, request: "Request", local: int) -> tuple[int | None, bool]:
        """How many tokens behind the first ``local`` can be loaded, and whether in the background.

        None while a copy that is to be loaded is still being written. May be asked again, and changes nothing.
        """
        execution = self._executions.get(request.request_id)
        if execution is None:
            return 0, False
        found = self._found(execution, local)
        end = self._end(execution, found)
        execution.offer = Offer(local, max(local, end), found)
        if end <= local:
            return 0, False
        sources = {(execution.nodes[index].key, execution.plan(index).source) for index in found}
        if any((transfer.key, transfer.target) in sources for transfer in self._under_way.values()):
            return None, False
        return end - local, any(source is Tier.DISK for _, source in sources)

    def allocated(self, request: "Request", blocks: Sequence[int], external: int) -> None:
        """Load ``external`` tokens into the last of the blocks that a request got for what is cached."""
        execution = self._executions.get(request.request_id)
        if execution is None:
            return
        self._waiting.pop(request.request_id, None)
        execution.blocks = list(blocks)
        if request.num_computed_tokens:
            # The second call for a load in the background: it is done.
            return
        offer = execution.offer
        execution.local, execution.cached = offer.local, offer.local + external
        if not external:
            return
        assert execution.cached == offer.end, "blocks were given for another load than was offered"
        held = {node.key: self._gpu.blocks(node.key) for node in execution.nodes if node.key in self._gpu}
        background = any(execution.plan(index).source is Tier.DISK for index in offer.nodes)
        self._loads.append(Load(request.request_id, tuple(execution.pieces(held)), background))

    def step(self, output: "SchedulerOutput") -> StepJobs:
        """The jobs that go with a step, once it is known what the step computes."""
        for new in output.scheduled_new_reqs:
            self._waiting.pop(new.req_id, None)
            execution = self._executions.get(new.req_id)
            if execution is not None:
                execution.blocks = list(new.block_ids[0])
        for request_id in output.preempted_req_ids or ():
            if request_id in self._executions:
                self._waiting[request_id] = self._executions[request_id].request
        running = output.scheduled_cached_reqs
        for request_id, block_ids in zip(running.req_ids, running.new_block_ids, strict=True):
            self._waiting.pop(request_id, None)
            execution = self._executions.get(request_id)
            if execution is not None and block_ids is not None:
                known = [] if request_id in running.resumed_req_ids else execution.blocks
                execution.blocks = [*known, *block_ids[0]]
        for request_id, scheduled in output.num_scheduled_tokens.items():
            execution = self._executions.get(request_id)
            if execution is not None:
                self._settle(execution, execution.request.num_computed_tokens + scheduled)
        self._relieve(len(output.num_scheduled_tokens))
        idle = not output.total_num_scheduled_tokens
        jobs = StepJobs(self._loads, self._queued, self._inquiries, idle)
        self._loads, self._queued, self._inquiries = [], [], []
        return jobs

    def heard(self, results: StepResults | None, invalid: Collection[int]) -> None:
        """Take in what the worker half did, and which blocks could not be loaded."""
        if results is not None:
            self._memory = results.memory or self._memory
            for name, reports in results.held.items():
                own = ResidencyReport(Tier.GPU, self._gpu.nodes(), self._instance)
                self._held[name] = (own, *reports)
                self._unanswered.discard(name)
            for request_id, load in results.loads.items():
                self._lost.update(dict.fromkeys(load.lost))
                # A request may end in the very step that it loaded for.
                execution = self._executions.get(request_id) or self._ended.get(request_id)
                if execution is not None:
                    execution.load_seconds += load.seconds
                    execution.missing.update(load.lost)
            for number, done in results.transfers.items():
                self._transferred(self._under_way.pop(number), done)
        if invalid:
            self._invalidate(set(invalid))

    def ended(self, request: "Request", blocks: Sequence[int]) -> None:
        """A request has finished or was given up; its blocks go back to the pool after this."""
        self._waiting.pop(request.request_id, None)
        execution = self._executions.pop(request.request_id, None)
        if execution is None:
            return
        if execution.forgotten:
            self._gpu.evict_hashes(blocks)
        else:
            self._owners.update({block: (execution, index) for index, block in enumerate(blocks)})
        if not execution.told:
            self._ended[request.request_id] = execution

    def inquire(self, name: str) -> None:
        """Ask what the tiers hold; a report has the answer under this name."""
        self._inquiries.append(name)
        self._unanswered.add(name)

    # What is told upwards

    @property
    def busy(self) -> bool:
        """Whether the engine should go on stepping although no request needs it."""
        return bool(self._under_way or self._queued or self._open_orders or self._unanswered)

    def report(self) -> EngineReport | None:
        """What there is to say since the last call."""
        resolved = {}
        for execution in (*self._executions.values(), *self._ended.values()):
            if not execution.told and execution.request.num_output_tokens:
                resolved[execution.orders.name] = execution.resolved()
                execution.told = True
        self._ended.clear()
        done = [name for name, (numbers, _) in self._open_orders.items() if not numbers]
        report = EngineReport(
            resolved=resolved,
            carried_out={name: tuple(self._open_orders.pop(name)[1]) for name in done},
            lost=tuple(LostCopy(key, tier) for key, tier in self._lost),
            held=self._held,
            memory=self._memory,
        )
        self._lost.clear()
        self._held = {}
        self._memory = None
        return report if report != EngineReport() else None

    # Plans

    def _found(self, execution: Execution, local: int) -> list[int]:
        """The nodes to load, less those that the GPU tier should have and has not."""
        found = []
        for index in execution.loadable(local):
            key = execution.nodes[index].key
            if execution.plan(index).source is Tier.GPU and key not in self._gpu:
                break
            found.append(index)
        return found

    def _end(self, execution: Execution, found: Sequence[int]) -> int:
        if not found:
            return 0
        node = execution.nodes[found[-1]]
        # The last token of a prompt is always computed: the next one is sampled from it.
        last: int = execution.request.num_tokens - 1
        return min(node.prefix_tokens + node.tokens, last)

    def _settle(self, execution: Execution, tokens: int) -> None:
        """Keep what is complete with ``tokens`` tokens of the prompt, as planned."""
        for index in execution.reached(tokens):
            node, planned = execution.nodes[index], execution.plan(index)
            execution.settled = index + 1
            if execution.forgotten:
                continue
            if planned.kept is Tier.GPU:
                self._gpu.hold(node, execution.parent(index), execution.blocks)
                self._lost.pop((node.key, Tier.GPU), None)
            elif planned.kept is not None and planned.source is None:
                transfer = Transfer(
                    number=next(self._numbers),
                    key=node.key,
                    source=Tier.GPU,
                    target=planned.kept,
                    node=node,
                    blocks=execution.node_blocks(index),
                    pages=planned.pages,
                    evict=False,
                )
                self._start(transfer)
            if planned.source is Tier.GPU and node.key not in self._gpu:
                self._lost[node.key, Tier.GPU] = None

    def _invalidate(self, invalid: set[int]) -> None:
        """What was to be loaded into these blocks is not there: forget all that was taken for granted about them."""
        for execution in self._executions.values():
            hit = next((index for index, block in enumerate(execution.blocks) if block in invalid), None)
            if hit is None:
                continue
            execution.fall_back(hit * self._page_tokens)
            spoilt = execution.blocks[hit:]
            # Until they are computed anew, nobody else may take them for what their hashes say.
            self._gpu.evict_hashes(spoilt)
            for key in self._gpu.with_blocks(spoilt):
                for released in self._gpu.release(key):
                    self._lost[released, Tier.GPU] = None

    # Orders

    def _carry_out(self, move: Move) -> int | None:
        """Start one order; the number of the transfer that comes of it, if one does."""
        held = move.source is Tier.GPU and move.node in self._gpu
        if move.source is Tier.GPU and move.target is None:
            self._gpu.release(move.node)
            return None
        transfer = Transfer(
            number=next(self._numbers),
            key=move.node,
            source=move.source,
            target=move.target,
            node=self._gpu.node(move.node) if held else None,
            # None left: it was carried out before, and then the target has it; or it cannot be.
            blocks=self._gpu.blocks(move.node) if held else (),
            pages=move.pages,
            evict=move.evict,
        )
        self._start(transfer)
        if held and move.evict:
            self._gpu.release(move.node)
        return transfer.number

    def _start(self, transfer: Transfer) -> None:
        self._gpu.retain(transfer.blocks)
        self._under_way[transfer.number] = transfer
        self._queued.append(transfer)

    def _transferred(self, transfer: Transfer, done: bool) -> None:
        self._gpu.give_back(transfer.blocks)
        lost = [] if done or transfer.target is None else [LostCopy(transfer.key, transfer.target)]
        waiting = next((order for order in self._open_orders.values() if transfer.number in order[0]), None)
        if waiting is None:
            self._lost.update({(copy.node, copy.tier): None for copy in lost})
        else:
            waiting[0].discard(transfer.number)
            waiting[1].extend(lost)

    def _forget(self, namespace: str, content: str) -> None:
        """Leave nothing in the engine's blocks of a document, nor of what was computed behind it."""
        for key in self._gpu.with_content(namespace, content):
            self._gpu.release(key)
        for execution in self._executions.values():
            if execution.orders.namespace == namespace and content in execution.orders.path:
                execution.forgotten = True
                self._gpu.evict_hashes(execution.blocks[self._first_block(execution, content) :])
        gone = [
            block
            for block, (owner, index) in self._owners.items()
            if owner.orders.namespace == namespace
            and content in owner.orders.path
            and index >= self._first_block(owner, content)
        ]
        self._gpu.evict_hashes(gone)
        for block in gone:
            del self._owners[block]

    def _first_block(self, execution: Execution, content: str) -> int:
        """The first block of a prompt that a document lies in; its end, for a document that has no node there."""
        node = next((node for node in execution.nodes if node.path[-1] == content), None)
        return node.prefix_tokens // self._page_tokens if node is not None else len(execution.blocks)

    def _relieve(self, running: int) -> None:
        """Let held blocks go rather than have a running request stopped, or a waiting one wait, for want of them."""
        wanted = running + 1
        waiting = next(iter(self._waiting.values()), None)
        if waiting is not None:
            wanted += -(-waiting.num_tokens // self._page_tokens)
        in_use = {key for execution in self._executions.values() if not execution.told for key in execution.keys}
        for key in self._gpu.relieve(wanted, self._spare, in_use):
            self._lost[key, Tier.GPU] = None
