"""Speculation with the real controller, a search and an engine that do what the test says."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from controller_integrity import check_integrity
from fake_layout import FakeLayout
from gateway_fakes import MODEL, eventually
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from varied import varied

from cachectl.runtime.controller import Controller, Engines
from cachectl.settings import ControllerSettings
from cachectl.tiers.location import Capacities, KvStorage
from cachectl.tree.load_or_recompute import TreeCosts
from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.query.pipeline import QueryPipeline
from gateway.query.query import Query
from gateway.query.speculation_start import SpeculationStart
from gateway.query.transcript import Transcript
from gateway.settings import GatewaySettings
from gateway.stores.query_log import QueryLogFile
from gateway.stores.recent import ApproximateAnswers
from gateway.tasks import BackgroundTasks
from gateway.wire import events
from protocol.errors import UnknownPlan
from protocol.generation import GenerationStep, PrefillResult, Sampling, StepBudget
from protocol.graph import Subgraph
from protocol.plans import CompletionReport, PlanOutcome, PrefillPlan, SpeculationDecision
from protocol.prompts import ChatMessage
from protocol.retrieval import CandidateSet, Chunk, SearchRequest

START, KEEP, DROP, WAIT = SpeculationDecision
COMPLETED, FAILED, CANCELLED = PlanOutcome


def chunk(letter: str) -> Chunk:
    return Chunk(f"{letter}#0", letter, f"{letter}.txt", 0, f"document called {letter}", letter)


class Search:
    """A search whose stages the test triggers. Documents are letters."""

    def __init__(self) -> None:
        self.stages: asyncio.Queue[CandidateSet | Exception] = asyncio.Queue()
        self.asked = 0
        self.given = 0
        self.closed = False

    def finds(self, documents: str, final: bool, graph: Subgraph | None = None) -> None:
        self.given += 1
        docs = tuple(chunk(letter) for letter in documents)
        found = CandidateSet(self.given, 9, docs, (0.5,) * len(docs), final, float(self.given), graph=graph)
        if graph is not None:
            found = replace(found, dense_scores=found.scores, sparse_scores=found.scores)
        self.stages.put_nowait(found)

    async def each(self) -> AsyncGenerator[CandidateSet]:
        try:
            while True:
                self.asked += 1
                await asyncio.sleep(0)
                stage = await self.stages.get()
                if isinstance(stage, Exception):
                    raise stage
                yield stage
                if stage.final:
                    return
        finally:
            self.closed = True


class Stream:
    """A stream of an engine, controlled by the test. Each word names the documents of its prompt."""

    def __init__(self, plan: PrefillPlan) -> None:
        self.plan = plan
        self.documents = "".join(document.key for document in plan.prompt.documents)
        self.said = 0
        self.closed = False
        self._steps: asyncio.Queue[GenerationStep | Exception] = asyncio.Queue()

    def says(self, words: int = 1, finish: bool = False) -> None:
        for number in range(1, words + 1):
            prefill = PrefillResult(self.plan.prompt.token_count, 0, 7.0) if not self.said else None
            self.said += 1
            reason = "stop" if finish and number == words else None
            self._steps.put_nowait(GenerationStep(f"{self.documents} ", 1, prefill, reason))

    def breaks(self, error: Exception) -> None:
        self._steps.put_nowait(error)

    def end(self) -> None:
        self._steps.put_nowait(GenerationStep("", 0, None, "ended"))

    async def each(self) -> AsyncGenerator[GenerationStep]:
        try:
            while True:
                await asyncio.sleep(0)
                step = await self._steps.get()
                if isinstance(step, Exception):
                    raise step
                yield step
                if step.finish_reason:
                    return
        finally:
            # Closing may await, as the abort of a real engine does.
            await asyncio.sleep(0)
            self.closed = True


class WatchedController(Controller):
    """The real controller, with a record of its calls."""

    def __init__(self, step: StepBudget | None, **bounds: int) -> None:
        limits = ControllerSettings(**{"policy": "LRU", "max_running": 9} | bounds)
        costs = TreeCosts(lambda cached, new: float(new), lambda tokens, tier: 0.0)
        super().__init__(limits, ["one"], lambda: 0.0, Engines(costs, step), KvStorage(Capacities(1000)))
        self.calls: list[str] = []
        self.plans: dict[str, PrefillPlan] = {}
        self.reports: list[CompletionReport] = []
        # Tests clear the first two to hold a call, and await the other two for its arrival.
        self.leasing, self.confirming = asyncio.Event(), asyncio.Event()
        self.leasing.set()
        self.confirming.set()
        self.at_lease, self.at_confirmation = asyncio.Event(), asyncio.Event()
        self.fails: dict[str, Exception] = {}
        # Whether the plans of guesses have their facts in trees.
        self.trees = False

    async def on_candidates(self, query_id, documents, final):
        self._calls("on_candidates")
        if final:
            self.at_confirmation.set()
            await self.confirming.wait()
        decision = await super().on_candidates(query_id, documents, final)
        self.calls[-1] = decision.value
        return decision

    async def speculate(self, query_id, documents, request):
        self._calls("speculate")
        self.at_lease.set()
        await self.leasing.wait()
        plan = await super().speculate(query_id, documents, request)
        if plan is not None and self.trees:
            prompt = request.prompt.in_trees
            plan = replace(plan, prompt=prompt, trees=prompt.trees)
        if plan is not None:
            self.plans[plan.query_id] = plan
        return plan

    async def admit(self, request):
        self._calls("admit")
        plan = self.plans[request.query_id] = await super().admit(request)
        return plan

    async def complete(self, report):
        # An admission cancelled in the queue has no plan.
        with suppress(UnknownPlan):
            await super().complete(report)
            self.reports.append(report)

    def _calls(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise self.fails[name]

    @property
    def outcomes(self) -> dict[str, PlanOutcome]:
        """The outcome of each plan."""
        assert len(self.reports) == len({report.query_id for report in self.reports}), "a plan completed twice"
        return {report.query_id: report.outcome for report in self.reports}


class Asked:
    """One query and its events so far."""

    def __init__(self, run: AsyncGenerator[events.Event]) -> None:
        self.events: list[events.Event] = []
        self.task = asyncio.create_task(self._read(run))

    async def _read(self, run: AsyncGenerator[events.Event]) -> None:
        async for event in run:
            self.events.append(event)

    async def answer(self) -> str:
        await self.task
        assert isinstance(self.events[-1], events.QueryCompleted)
        text = self.events[-1].response.output_text
        assert text == "".join(event.delta for event in self.events if isinstance(event, events.OutputTextDelta))
        return text

    async def leaves(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})
        assert self.task.cancelled()

    @property
    def silent(self) -> bool:
        """Whether no event has left that depends on the documents."""
        return all(isinstance(event, events.QueryCreated | events.RetrievalStage) for event in self.events)


class Scene:
    """The four parts of a stack: the real controller, and a search and an engine controlled by the test."""

    def __init__(self, step: StepBudget | None = None, **bounds: int) -> None:
        self.retriever = self.generator = self
        self.layout = FakeLayout()
        self.controller = WatchedController(step, **bounds)
        self.searches: dict[str, Search] = {}
        self.streams: dict[str, Stream] = {}
        self.end_fails: Exception | None = None
        self.answers_by_itself = False
        self.tasks = BackgroundTasks()
        self.registry = CollectorRegistry()
        self.metrics = GatewayMetrics(self.registry)
        # The release time of the fake engine is arbitrary, so it must not be learnt.
        self.start = SpeculationStart()
        self.ended_ms: list[float] = []
        self.approximate = ApproximateAnswers(1.0)
        self.start.record_ending = self.ended_ms.append
        self.before = asyncio.all_tasks()

    # The parts

    def search(self, request: SearchRequest) -> AsyncGenerator[CandidateSet]:
        return self.searches[request.query].each()

    async def stream(self, plan: PrefillPlan, sampling: Sampling) -> AsyncGenerator[GenerationStep]:
        for plan_id in plan.ends:
            await self.end(plan_id)
        stream = self.streams[plan.query_id] = Stream(plan)
        if self.answers_by_itself:
            stream.says(2, finish=True)
        steps = stream.each()
        try:
            async for step in steps:
                yield step
        finally:
            await steps.aclose()

    async def end(self, plan_id: str) -> None:
        if self.end_fails is not None:
            raise self.end_fails
        if plan_id in self.streams:
            self.streams[plan_id].end()

    @property
    def counted(self) -> dict[str, int]:
        """Guesses by outcome, according to the metrics."""
        (family,) = [family for family in self.registry.collect() if family.name == "ragtree_speculation"]
        counts = {sample.labels["outcome"]: sample.value for sample in family.samples if sample.name.endswith("_total")}
        return {outcome: count for outcome, count in counts.items() if count}

    # Steps of a test

    def asks(self, query_id: str, include_stages: bool = False, **limits: float) -> Asked:
        pipeline = QueryPipeline(
            self,
            metrics=self.metrics,
            tasks=self.tasks,
            query_log=QueryLogFile(None, 0),
            settings=varied(GatewaySettings, **limits),
            speculation_start=self.start,
            approximate=self.approximate,
        )
        self.searches[query_id] = Search()
        query = Query(
            namespace="n",
            caller="caller",
            model=MODEL,
            search=SearchRequest("default", "default", query_id, 3),
            messages=(ChatMessage("user", "Why?"),),
            question_field="query",
            sampling=Sampling(64),
            include_stages=include_stages,
            query_id=query_id,
        )
        return Asked(pipeline.run(Transcript(query)))

    async def finds(self, query_id: str, documents: str, final: bool = False, graph: Subgraph | None = None) -> None:
        """Trigger a stage of a search, and wait until it is handled."""
        search = self.searches[query_id]
        search.finds(documents, final, graph)
        if final:
            await eventually(lambda: search.closed)
        else:
            await eventually(lambda: search.asked > search.given)

    async def opened(self, plan_id: str) -> Stream:
        await eventually(lambda: plan_id in self.streams)
        return self.streams[plan_id]

    async def given_back(self, *plan_ids: str) -> None:
        """Wait until these plans and their streams have ended."""
        await eventually(lambda: all(plan_id in self.controller.outcomes for plan_id in plan_ids))
        assert all(self.streams[plan_id].closed for plan_id in plan_ids if plan_id in self.streams)

    async def at_rest(self) -> None:
        """Check that nothing is left of any query."""
        await self.tasks.drain(5)
        assert len(self.tasks) == 0
        # The event loop needs an iteration to close an iterator that an error left open.
        await eventually(lambda: not asyncio.all_tasks() - self.before - {asyncio.current_task()})
        assert all(search.closed for search in self.searches.values() if search.asked)
        assert all(stream.closed for stream in self.streams.values())
        check_integrity(self.controller)
        stats = await self.controller.stats()
        assert (stats.running, stats.queued) == (0, 0)
        assert self.controller._scheduler.instances.idle == ["one"]
        assert not self.controller._scheduler.tree.grants.open
        self.controller.expire_leases()
        assert not self.controller._speculations._running
        assert set(self.controller.outcomes) == set(self.controller.plans)
