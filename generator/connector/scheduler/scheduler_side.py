"""The connector's scheduler side: turns plans into jobs for the worker side.

vLLM's scheduler-side calls end up here, on the engine's own thread. The plan decides what is loaded, kept and moved.
This side itself takes two decisions: it releases held nodes early if requests would starve (``block_relief``), and
deletes copies that some tensor-parallel ranks lack.
"""

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from generator.connector.engine_process import StepRecord
from generator.connector.messages import EngineReport, RequestMessage
from generator.connector.scheduler.block_relief import BlockRelief
from generator.connector.scheduler.compositions import Compositions
from generator.connector.scheduler.fair_steps import FairSteps
from generator.connector.scheduler.followed_blocks import FollowedBlocks
from generator.connector.scheduler.gpu_tier import BlockOwners, GpuTier
from generator.connector.scheduler.held_copies import HeldCopies, HostCopies
from generator.connector.scheduler.kept_windows import KeptWindows
from generator.connector.scheduler.load_waits import LoadWaits
from generator.connector.scheduler.planned_request import PlannedRequest
from generator.connector.scheduler.rank_results import RankResults
from generator.connector.scheduler.transfer_queue import LostCopies, TransferQueue
from generator.connector.step_jobs import BlockCopy, CompositionResult, Load, LoadResult, StepJobs, StepResults
from protocol.kv import KvMemory, LostCopy, Paging, ResidencyReport, without_adapter
from protocol.tiers import Tier

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request


class _Step(NamedTuple):
    """A step under way: whether it computes tokens, the blocks retained for its copies, and the plans it computes."""

    computes: bool
    retained: list[int]
    plans: frozenset[str]


class SchedulerSide:
    """Executes the plans that requests carry to an ``instance``, over blocks cut as ``paging`` says.

    The engine takes at most ``most_requests`` requests and ``most_tokens`` tokens in one step, has at most
    ``in_flight_tokens`` under way (by default those of one step), and ``ranks`` tensor-parallel workers. The requests
    of each step are written into ``record`` before it. ``fair_steps`` bounds what prefills take of steps that tenants
    share.
    """

    def __init__(
        self,
        paging: Paging,
        instance: str,
        most_requests: int,
        most_tokens: int,
        ranks: int = 1,
        record: StepRecord | None = None,
        fair_steps: FairSteps | None = None,
        in_flight_tokens: int | None = None,
    ) -> None:
        self._record = record or StepRecord(None)
        self._fair_steps = fair_steps
        self._instance = instance
        self._paging = paging
        self._gpu = GpuTier(paging)
        self._lost = LostCopies()
        self._transfers = TransferQueue(self._gpu, self._lost, ranks)
        self._ranks = ranks
        self._rank_results = RankResults(ranks)
        self._owners = BlockOwners(self._gpu, paging)
        self._windows = KeptWindows(self._gpu, paging)
        self._blocks = FollowedBlocks(self._gpu, self._owners, self._windows)
        self._relief = BlockRelief(
            self._gpu, self._windows, paging, most_requests, most_tokens, in_flight_tokens or most_tokens
        )
        self._requests: dict[str, Request] = {}
        self._states: dict[str, PlannedRequest] = {}
        # Requests that ended before their prefill was reported.
        self._ended: dict[str, PlannedRequest] = {}
        self._loads: list[Load] = []
        self._copies: list[BlockCopy] = []
        self._held_copies = HeldCopies(self._lost)
        self._waits = LoadWaits(paging.page_tokens)
        # Loads under way, by request. A load may outlive its request.
        self._loading: dict[str, Load] = {}
        # Steps under way, the oldest first.
        self._steps: deque[_Step] = deque()
        self._compositions = Compositions()
        self._inquiries: list[str] = []
        self._unanswered: set[str] = set()
        self._held: dict[str, tuple[ResidencyReport, ...]] = {}
        self._memory: KvMemory | None = None

    def bind(self, pool: "BlockPool", host: HostCopies | None = None) -> None:
        """Take the engine's block pool, and the host memory of the worker side if it is in this process."""
        self._gpu.bind(pool)
        if host is not None:
            self._held_copies.bind(host)

    # The life of a request

    def admit(self, request: "Request", message: RequestMessage | None) -> None:
        """Register a new request, and start what its message orders."""
        self._requests[request.request_id] = request
        if message is None:
            return
        plan, orders = message.plan, message.orders
        moves = orders.moves if plan is None else plan.moves
        numbers = {number for move in moves if (number := self._transfers.move(move)) is not None}
        if orders.forget or orders.everything:
            contents = None if orders.everything else _by_namespace(orders.forget)
            below = [tier for tier in orders.tiers if tier is not Tier.GPU]
            # Even without tiers below the GPU: what composing keeps is in none of them.
            purge = self._transfers.purge(contents, below, orders.of)
            numbers.add(purge.number)
            if Tier.GPU in orders.tiers:
                self._owners.forget(purge, self._states.values())
        if message.inquire:
            self.inquire(message.name)
        if plan is None:
            self._transfers.open_message(message.name, numbers)
            return
        if plan.spare:
            self._relief.set_spare(plan.spare)
        state = self._states[request.request_id] = PlannedRequest(request, plan, message.path, self._paging)
        if numbers or state.saves:
            self._transfers.open_message(message.name, numbers, whole=False)

    def match(self, request: "Request", local: int) -> tuple[int | None, bool]:
        """The number of tokens to load after the first ``local``, and whether they load in the background.

        The number is None while one of the copies is still being written. vLLM may ask several times: asking has no
        side effect but the offer, whose copies are held until the next step, or found to be lost.
        """
        state = self._states.get(request.request_id)
        if state is None:
            return 0, False
        while True:
            offer = state.make_offer(local, self._gpu)
            if offer.end <= local:
                return 0, False
            if self._transfers.writes_any(set(state.copies_offered())):
                return None, False
            if self._held_copies.hold(state):
                return offer.end - local, state.loads_in_background

    def tokens_to_node_end(self, request: "Request", start: int) -> int:
        """How many tokens after the first ``start`` ones a node to keep ends; 0 if none does."""
        state = self._states.get(request.request_id)
        return state.tokens_to_node_end(start) if state is not None else 0

    def allocated(self, request: "Request", blocks: Sequence[Sequence[int]], external: int) -> None:
        """Record a request's blocks by group, and load ``external`` tokens into the last ones."""
        state = self._states.get(request.request_id)
        if state is None:
            return
        self._blocks.allocate(state, blocks)
        offer = state.offer
        if request.num_computed_tokens:
            # This is the second call for a load. vLLM has counted the tokens before the first block that failed.
            if not request.num_preemptions:
                state.limit_cached(request.num_computed_tokens)
            return
        self._windows.keep(state, 0, offer.local)
        if not request.num_preemptions:
            # After a preemption, much of what is found is what the request itself computed before.
            state.accepted(external)
        if not external:
            return
        assert offer.local + external == offer.end, "blocks were allocated for another load than was offered"
        held = {key: self._gpu.blocks(key) for key, _ in state.copies_offered() if key in self._gpu}
        load = self._windows.load_of(state, held)
        # Until they are copied, held blocks must not be written to, also if their nodes are released.
        self._gpu.retain(load.held_blocks)
        if state.loads_in_background:
            busy = self._loading or self._compositions.busy or any(step.computes for step in self._steps)
            self._waits.begin(load, alone=not busy)
            self._loads.append(load)
            self._loading[load.request_id] = load
            return
        # Copies out of what is held do not fail: the request computes in this very step.
        self._copies += load.copies
        self._windows.loaded(load, state, failed=False)
        if state.within_step:
            self._held_copies.add(load)

    def complete(self, request: "Request") -> None:
        """Record the end of a request, finished or aborted. Its blocks return to the pool after this call."""
        self._requests.pop(request.request_id, None)
        state = self._states.pop(request.request_id, None)
        if state is None:
            return
        if request.num_output_tokens:
            self._prefilled(state)
        elif state.plan.speculative:
            # Tokens computed after the loaded ones prove that the load was good.
            computed: int = request.num_computed_tokens
            state.reached = computed if computed > state.cached else 0
            if state.reached:
                self._prefilled(state)
        self._transfers.forget_message(state.plan.query_id)
        self._compositions.drop(request.request_id)
        self._waits.drop(request.request_id)
        self._blocks.leave(state)
        self._windows.give_back(state)
        if not state.reported:
            self._ended[request.request_id] = state

    # A step of the engine

    def step_jobs(self, output: "SchedulerOutput") -> StepJobs:
        """The jobs for a step, given what the step computes."""
        # Those of the steps before this one, and those that the engine has found itself.
        states = self._windows.take_states()
        self._blocks.step(output, self._states, self._loading)
        for key in self._relief.relieve(output.num_scheduled_tokens, self._requests, self._states, self._loading):
            self._lost.add(LostCopy(key, Tier.GPU))
        # Without pending work there is nothing to pause for, and the next request would wait for the end of the pause.
        # With asynchronous scheduling, a pause would also delay the step that is being computed.
        compose = self._compositions.next_step()
        computed = (*output.num_scheduled_tokens, *((compose.request_id,) if compose is not None else ()))
        if (waited := self._waits.computes(computed)) is not None:
            self._states[waited[0]].reads.append(waited[1])
        plans = frozenset(self._states[name].plan.query_id for name in computed if name in self._states)
        retained = [copy.source for copy in self._copies]
        retained += [block for copy in states for block in (copy.source, copy.target)]
        self._steps.append(_Step(bool(output.total_num_scheduled_tokens), retained, plans))
        self._record.write(frozenset().union(*(step.plans for step in self._steps)))
        computing = compose is not None or any(step.computes for step in self._steps)
        idle = not computing and bool(self._requests or self._loading or self.busy)
        if self._fair_steps is not None:
            self._fair_steps.begin(self._states.values(), output.total_num_scheduled_tokens)
        transfers, purges = self._transfers.take_queued()
        held = self._held_copies.take()
        jobs = StepJobs(states, self._loads, held, self._copies, compose, transfers, purges, self._inquiries, idle)
        self._loads, self._copies, self._inquiries = [], [], []
        return jobs

    def update(self, results: StepResults) -> None:
        """Take results of the worker side."""
        joined = self._rank_results.join(results)
        self._memory = joined.memory or self._memory
        for name, held in joined.held.items():
            own = ResidencyReport(Tier.GPU, self._gpu.nodes(), self._instance)
            below = (
                ResidencyReport(tier, tuple(stored.held for stored in found.nodes), highest_stamp=found.highest_stamp)
                for tier, found in held.items()
            )
            self._held[name] = (own, *below)
            self._unanswered.discard(name)
        for tier, (node, pages) in self._rank_results.take_partial():
            self._transfers.drop(node.key, tier, pages)
        for request_id, result in joined.loads.items():
            self._loaded(self._loading[request_id], result)
        for request_id, seconds in joined.step_load_s.items():
            state = self._state(request_id)
            if state is not None:
                state.load_seconds += seconds
        for request_id, composed in joined.composed.items():
            self._composed(request_id, composed)
        for number, done in joined.transfers.items():
            self._transfers.transferred(number, done)
        for number, left in joined.purged.items():
            self._transfers.purged(number, left)

    def end_step(self) -> None:
        """Record the end of the oldest step under way. Its results, if any, are taken before."""
        self._gpu.give_back(self._steps.popleft().retained)
        if self._fair_steps is not None:
            self._fair_steps.end()

    # Reports

    def inquire(self, name: str) -> None:
        """Ask what the tiers hold. A later report has the answer under this name."""
        self._inquiries.append(name)
        self._unanswered.add(name)

    @property
    def busy(self) -> bool:
        """Whether the engine should keep stepping although no request needs it."""
        ended_early = any(state.reached is not None for state in self._ended.values())
        busy = self._transfers.busy or self._compositions.busy or self._windows.busy or self._held_copies.busy
        return bool(busy or self._unanswered or ended_early)

    def report(self) -> EngineReport | None:
        """What has happened since the last call, or None for nothing."""
        for state in self._states.values():
            # Not those that have ended: their blocks belong to others by now.
            if state.request.num_output_tokens:
                self._prefilled(state)
        prefilled = {}
        for state in (*self._states.values(), *self._ended.values()):
            if state.reported:
                continue
            if state.request.num_output_tokens or state.reached is not None:
                prefilled[state.plan.query_id] = state.prefilled()
                state.reported = True
        self._ended.clear()
        carried_out, refused = self._transfers.take_carried_out()
        report = EngineReport(
            prefilled=prefilled,
            carried_out=carried_out,
            refused=refused,
            # Lost copies travel with a first token. Until then, a copy that is made again is not lost any more.
            lost=self._lost.take() if prefilled else (),
            held=self._held,
            memory=self._memory,
        )
        self._held = {}
        self._memory = None
        return report if report != EngineReport() else None

    # Nodes

    def _prefilled(self, state: PlannedRequest) -> None:
        """Keep a prompt's nodes as planned: all after the first token, else those that are complete."""
        if state.nodes_kept or state.forgotten:
            return
        state.nodes_kept = True
        for index in range(len(state.nodes)):
            self._keep_node(state, index)
        self._windows.give_back(state)
        self._transfers.end_message(state.plan.query_id)

    def _keep_node(self, state: PlannedRequest, index: int) -> None:
        node, planned, name = state.nodes[index], state.planned(index), state.plan.query_id
        if state.reached is not None and not state.has_reached(index, state.reached):
            if planned.kept is Tier.GPU and planned.source is not Tier.GPU:
                self._lost.add(LostCopy(node.key, Tier.GPU))
            elif planned.saved_to is not None:
                self._transfers.cannot_save(name, node.key, planned.saved_to)
            return
        blocks = state.blocks.of_node(node)
        if planned.kept is Tier.GPU and blocks is not None and self._gpu.can_be_found(node, blocks):
            self._gpu.hold(node, state.parent(index), blocks)
            self._lost.discard(LostCopy(node.key, Tier.GPU))
        elif planned.saved_to is not None and blocks is not None:
            self._transfers.save(name, node, blocks, planned.saved_to, planned.pages)
        elif planned.saved_to is not None:
            self._transfers.cannot_save(name, node.key, planned.saved_to)
        if Tier.GPU in (planned.source, planned.kept) and node.key not in self._gpu:
            self._lost.add(LostCopy(node.key, Tier.GPU))

    def _state(self, request_id: str) -> PlannedRequest | None:
        """A planned request, also one that has ended and is not reported yet."""
        return self._states.get(request_id) or self._ended.get(request_id)

    def _loaded(self, load: Load, result: LoadResult) -> None:
        """Record the end of a load."""
        self._gpu.give_back(load.held_blocks)
        self._lost.add(*result.lost)
        if result.failed:
            self._waits.drop(load.request_id)
        if self._ranks > 1:
            # Other ranks may still have their part of the copy.
            pages = {read.copy: read.source.pages for read in (*load.pieces, *load.donors)}
            for copy in result.lost:
                if not copy.location:
                    self._transfers.drop(copy.node, copy.tier, pages[copy])
        state = self._state(load.request_id)
        if state is not None:
            state.load_seconds += result.seconds
            state.missing.update((*result.lost, *result.unread))
            # An object store that does not answer says nothing about what lies on this machine.
            state.silent.update(copy.location for copy in result.unread if copy.location)
            state.reads += result.peers
        waiting = self._states.get(load.request_id)
        self._windows.loaded(load, waiting, result.failed)
        if load.composition is None:
            del self._loading[load.request_id]
        else:
            composition = waiting.composition(result.failed) if waiting is not None else None
            if waiting is not None:
                waiting.composing = composition is not None
            self._compositions.add(load.request_id, composition)

    def _composed(self, request_id: str, result: CompositionResult) -> None:
        """Record the end of a composition."""
        del self._loading[request_id]
        self._compositions.ended(request_id)
        state = self._states.get(request_id)
        if state is not None:
            # A composition that was given up because its load failed is composed once more, without what is missing.
            state.not_composed = state.composing and result.failed
        if state is not None and (not result.failed or result.composed.deviation):
            state.composed = result.composed


def _by_namespace(forget: Sequence[tuple[str, str]]) -> dict[str, frozenset[str]]:
    contents: dict[str, set[str]] = {}
    for namespace, content in forget:
        contents.setdefault(without_adapter(namespace), set()).add(content)
    return {namespace: frozenset(named) for namespace, named in contents.items()}
