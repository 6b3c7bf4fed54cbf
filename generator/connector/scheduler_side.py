"""The connector's scheduler half: turns plans into jobs for the worker half, and holds what stays in the GPU.

Scheduler-side calls of vLLM's contract end up here, in the engine's own thread. Nothing here decides about caching: the
plan says what is loaded, kept and moved. One thing is decided: held blocks go early when requests would starve.
"""

from collections import deque
from collections.abc import Collection, Sequence
from itertools import count
from typing import TYPE_CHECKING

import structlog

from generator.connector.gpu_tier import GpuTier
from generator.connector.messages import EngineReport, RequestOrders
from generator.connector.request_state import Execution, Offer
from generator.connector.step_jobs import Load, Purge, StepJobs, StepResults, Transfer
from protocol.kv import KvMemory, LostCopy, Move, ResidencyReport
from protocol.tiers import Tier

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

log = structlog.get_logger(__name__)


class SchedulerHalf:
    """Executes the plans that requests bring along to an ``instance``, over blocks of ``page_tokens`` tokens.

    The engine takes at most ``most_requests`` and ``most_tokens`` in one step.
    """

    def __init__(self, page_tokens: int, instance: str, most_requests: int, most_tokens: int) -> None:
        self._most_requests = most_requests
        self._most_tokens = most_tokens
        self._instance = instance
        self._page_tokens = page_tokens
        self._gpu = GpuTier(page_tokens)
        self._executions: dict[str, Execution] = {}
        self._requests: dict[str, Request] = {}
        # What lay in a block last: whose prompt, and which of its blocks. Bounded by the number of blocks.
        self._owners: dict[int, tuple[Execution, int]] = {}
        self._numbers = count(1)
        self._loads: list[Load] = []
        # Those in the background that have not ended, though their requests may have.
        self._loading: set[str] = set()
        self._queued: list[Transfer] = []
        self._under_way: dict[int, Transfer] = {}
        # Orders outside of plans: the transfers that they wait for, and what failed of them.
        self._open_orders: dict[str, tuple[set[int], list[LostCopy]]] = {}
        self._refused: set[str] = set()
        self._spare: deque[str] = deque(maxlen=64)
        self._ended: dict[str, Execution] = {}
        self._lost: dict[tuple[str, Tier], None] = {}
        self._purges: list[Purge] = []
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
        self._requests[request.request_id] = request
        if orders is None:
            return
        numbers = {number for move in orders.moves if (number := self._carry_out(move)) is not None}
        if orders.forget or orders.everything:
            contents = None if orders.everything else _by_namespace(orders.forget)
            purge = Purge(next(self._numbers), contents)
            self._forget(purge)
            if not orders.blocks_only:
                self._purges.append(purge)
                numbers.add(purge.number)
        if orders.spare:
            self._spare.clear()
            self._spare.extend(orders.spare)
        if orders.inquire:
            self.inquire(orders.name)
        if orders.plan:
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
        return end - local, execution.in_background

    def allocated(self, request: "Request", blocks: Sequence[int], external: int) -> None:
        """Load ``external`` tokens into the last of the blocks that a request got for what is cached."""
        execution = self._executions.get(request.request_id)
        if execution is None:
            return
        execution.blocks = list(blocks)
        if request.num_computed_tokens:
            # The second call for a load in the background: it is done.
            return
        offer = execution.offer
        if not request.num_preemptions:
            # Afterwards much of what is found is what the request itself computed before.
            execution.local, execution.cached = offer.local, offer.local + external
        if not external:
            return
        assert offer.local + external == offer.end, "blocks were given for another load than was offered"
        held = {node.key: self._gpu.blocks(node.key) for node in execution.nodes if node.key in self._gpu}
        load = Load(request.request_id, tuple(execution.pieces(held)), execution.in_background)
        self._loads.append(load)
        if load.background:
            self._loading.add(load.request_id)

    def step(self, output: "SchedulerOutput") -> StepJobs:
        """The jobs that go with a step, once it is known what the step computes."""
        for new in output.scheduled_new_reqs:
            execution = self._executions.get(new.req_id)
            if execution is not None:
                execution.blocks = list(new.block_ids[0])
        running = output.scheduled_cached_reqs
        for request_id, block_ids in zip(running.req_ids, running.new_block_ids, strict=True):
            execution = self._executions.get(request_id)
            if execution is not None and block_ids is not None:
                known = [] if request_id in running.resumed_req_ids else execution.blocks
                execution.blocks = [*known, *block_ids[0]]
        for request_id in output.preempted_req_ids or ():
            if request_id in self._executions:
                self._executions[request_id].blocks = []
        self._relieve(output.num_scheduled_tokens)
        # With nobody waiting there is nothing to pause for, and who comes next would wait for the end of the pause.
        idle = not output.total_num_scheduled_tokens and bool(self._requests or self._loading or self.busy)
        jobs = StepJobs(self._loads, self._queued, self._purges, self._inquiries, idle)
        self._loads, self._queued, self._purges, self._inquiries = [], [], [], []
        return jobs

    def heard(self, results: StepResults | None, invalid: Collection[int]) -> None:
        """Take in what the worker half did, and which blocks could not be loaded."""
        if results is not None:
            self._memory = results.memory or self._memory
            for name, reports in results.held.items():
                own = ResidencyReport(Tier.GPU, self._gpu.nodes(), self._instance)
                self._held[name] = (own, *reports)
                self._unanswered.discard(name)
            self._loading -= results.loads.keys()
            for request_id, load in results.loads.items():
                self._lost.update(dict.fromkeys(load.lost))
                # A request may end in the very step that it loaded for.
                execution = self._executions.get(request_id) or self._ended.get(request_id)
                if execution is not None:
                    execution.load_seconds += load.seconds
                    execution.missing.update(load.lost)
            for number, done in results.transfers.items():
                self._transferred(self._under_way.pop(number), done)
            for number, left in results.purged.items():
                self._purged(number, left)
        if invalid:
            self._invalidate(set(invalid))

    def ended(self, request: "Request", blocks: Sequence[int]) -> None:
        """A request has finished or was given up; its blocks go back to the pool after this."""
        self._requests.pop(request.request_id, None)
        execution = self._executions.pop(request.request_id, None)
        if execution is None:
            return
        if request.num_output_tokens:
            self._settle(execution)
        elif execution.orders.speculative:
            # Whoever computes behind what was loaded knows by then that the load was good.
            computed: int = request.num_computed_tokens
            execution.reached = computed if computed > execution.cached else 0
            if execution.reached:
                self._settle(execution)
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
        ended_early = any(execution.reached is not None for execution in self._ended.values())
        return bool(self._under_way or self._queued or self._open_orders or self._unanswered or ended_early)

    def report(self) -> EngineReport | None:
        """What there is to say since the last call."""
        resolved = {}
        for execution in (*self._executions.values(), *self._ended.values()):
            if execution.told:
                continue
            if execution.request.num_output_tokens:
                self._settle(execution)
            if execution.request.num_output_tokens or execution.reached is not None:
                resolved[execution.orders.name] = execution.resolved()
                execution.told = True
        self._ended.clear()
        done = [name for name, (numbers, _) in self._open_orders.items() if not numbers]
        # Only with a first token, which takes them along: until then a copy that is made anew is not lost any more.
        lost = tuple(LostCopy(key, tier) for key, tier in self._lost) if resolved else ()
        ended = {name: tuple(self._open_orders.pop(name)[1]) for name in done}
        report = EngineReport(
            resolved=resolved,
            carried_out=ended,
            refused=tuple(self._refused & ended.keys()),
            lost=lost,
            held=self._held,
            memory=self._memory,
        )
        self._refused -= ended.keys()
        if resolved:
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

    def _settle(self, execution: Execution) -> None:
        """Keep a prompt's nodes as planned, as far as they are there and good: all, once it has a first token."""
        if execution.settled or execution.forgotten:
            return
        execution.settled = True
        for index, (node, planned) in enumerate(zip(execution.nodes, execution.orders.nodes, strict=True)):
            if execution.reached is not None and not execution.has_reached(index, execution.reached):
                if planned.kept is not None and planned.kept is not planned.source:
                    self._lost[node.key, planned.kept] = None
                continue
            blocks = execution.node_blocks(index)
            if planned.kept is Tier.GPU and self._gpu.can_be_found(node, blocks):
                self._gpu.hold(node, execution.parent(index), execution.blocks)
                self._lost.pop((node.key, Tier.GPU), None)
            elif planned.kept in (Tier.HOST, Tier.DISK) and planned.source is None:
                self._start(
                    Transfer(
                        number=next(self._numbers),
                        key=node.key,
                        source=Tier.GPU,
                        target=planned.kept,
                        node=node,
                        blocks=blocks,
                        pages=planned.pages,
                        evict=False,
                    )
                )
            if Tier.GPU in (planned.source, planned.kept) and node.key not in self._gpu:
                self._lost[node.key, Tier.GPU] = None

    def _invalidate(self, invalid: set[int]) -> None:
        """What was to be loaded into these blocks is not there: forget all that was taken for granted about them."""
        for execution in self._executions.values():
            hit = next((index for index, block in enumerate(execution.blocks) if block in invalid), None)
            if hit is None:
                continue
            execution.fall_back(hit * self._page_tokens)
            # Until they are computed anew, nobody else may take them for what their hashes say.
            self._gpu.evict_hashes(execution.blocks[hit:])

    # Orders

    def _carry_out(self, move: Move) -> int | None:
        """Start one order; the number of the transfer that comes of it, if one does."""
        held = move.source is Tier.GPU and move.node in self._gpu
        if move.source is Tier.GPU and move.target is None:
            self._release(move.node)
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
            self._release(move.node)
        return transfer.number

    def _release(self, key: str) -> None:
        """Let a node go as ordered; what still stands behind it goes too, and nobody ordered that."""
        for released in self._gpu.release(key):
            if released != key:
                self._lost[released, Tier.GPU] = None

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

    def _purged(self, number: int, left: int) -> None:
        for name, (numbers, _) in self._open_orders.items():
            if number in numbers:
                numbers.discard(number)
                if left:
                    self._refused.add(name)

    def _forget(self, purge: Purge) -> None:
        """Leave nothing in the engine's blocks of documents, nor of what was computed behind them."""
        for key in self._gpu.matching(purge.dooms):
            self._gpu.release(key)
        gone: list[int] = []
        for execution in self._executions.values():
            first = self._first_block(execution, purge)
            if first is not None:
                execution.forgotten = True
                gone += execution.blocks[first:]
        for block, (owner, index) in self._owners.items():
            first = self._first_block(owner, purge)
            if first is not None and index >= first:
                gone.append(block)
        # Requests that named no documents are in nobody's account: of them, only everything takes all.
        self._gpu.evict_hashes(gone if purge.contents is not None else range(self._gpu.pool.num_gpu_blocks))
        for block in gone:
            self._owners.pop(block, None)

    def _first_block(self, execution: Execution, purge: Purge) -> int | None:
        """The first block of a prompt that any of the documents lies in, None if it has none of them."""
        if not purge.dooms(execution.orders.namespace, execution.orders.path):
            return None
        first = next((node for node in execution.nodes if purge.dooms(node.namespace, node.path)), None)
        return first.prefix_tokens // self._page_tokens if first is not None else 0

    def _relieve(self, scheduled: dict[str, int]) -> None:
        """Let held blocks go rather than have a running request stopped, or a waiting one wait, for want of them."""
        wanted = len(scheduled) + 1
        if len(scheduled) < self._most_requests and sum(scheduled.values()) < self._most_tokens:
            # The step had room for more, so who was not scheduled waits for blocks, or for a load.
            wanted += max((self._needs(name) for name in self._requests.keys() - scheduled.keys()), default=0)
        if self._gpu.pool.get_num_free_blocks() >= wanted:
            return
        in_use = {key for execution in self._executions.values() if not execution.told for key in execution.keys}
        for key in self._gpu.relieve(wanted, self._spare, in_use):
            self._lost[key, Tier.GPU] = None

    def _needs(self, request_id: str) -> int:
        """Blocks that a request has yet to get: all of its own, less those that are held for it."""
        total: int = -(-self._requests[request_id].num_tokens // self._page_tokens)
        execution = self._executions.get(request_id)
        if execution is None:
            return total
        there = {block for node in execution.nodes if node.key in self._gpu for block in self._gpu.blocks(node.key)}
        return max(0, total - len(there | set(execution.blocks)))


def _by_namespace(forget: Sequence[tuple[str, str]]) -> dict[str, frozenset[str]]:
    contents: dict[str, set[str]] = {}
    for namespace, content in forget:
        contents.setdefault(namespace, set()).add(content)
    return {namespace: frozenset(named) for namespace, named in contents.items()}
