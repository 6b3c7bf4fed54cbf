"""Generating while the search goes on: nobody sees it before it is confirmed, and nothing is left of it afterwards."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress

import pytest
from gateway_fakes import ANSWER, MODEL, FakeLayout, Stack, eventually, whenever_possible
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from cachectl.runtime.controller import Controller
from cachectl.settings import ControllerSettings
from cachectl.tree.tier_manager import Capacities
from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.query.lease import Releases
from gateway.query.pipeline import QueryPipeline
from gateway.query.query import Query
from gateway.query.speculation_start import Settling
from gateway.query.transcript import Transcript
from gateway.settings import GatewaySettings
from gateway.stores.query_log_file import QueryLogFile
from gateway.wire import events
from protocol.errors import DeadlineExceeded, EngineDied, Unavailable, UnknownPlan
from protocol.generation import GenerationStep, PrefillResult, Sampling, StepBudget
from protocol.plans import CompletionReport, PlanOutcome, PrefillPlan, SpeculationDecision
from protocol.prompts import ChatMessage
from protocol.retrieval import CandidateSet, Chunk, SearchRequest
from protocol.tiers import Tier

START, KEEP, DROP, WAIT = SpeculationDecision
COMPLETED, FAILED, CANCELLED = PlanOutcome


def chunk(letter: str) -> Chunk:
    return Chunk(f"{letter}#0", letter, f"{letter}.txt", 0, f"document called {letter}", letter)


class Search:
    """A search whose stages come when the test says so; documents are letters."""

    def __init__(self) -> None:
        self.stages: asyncio.Queue[CandidateSet | Exception] = asyncio.Queue()
        self.asked = 0
        self.given = 0
        self.closed = False

    def finds(self, documents: str, final: bool) -> None:
        self.given += 1
        docs = tuple(chunk(letter) for letter in documents)
        self.stages.put_nowait(CandidateSet(self.given, 9, docs, (0.5,) * len(docs), final, float(self.given)))

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
    """A stream of an engine that does what the test says; each word names the documents that it rests on."""

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
            # Closing may itself await, as the abort of a real engine does.
            await asyncio.sleep(0)
            self.closed = True


class WatchedController(Controller):
    """The real one, with a record of what it was asked and told."""

    def __init__(self, step: StepBudget | None, **bounds: int) -> None:
        limits = ControllerSettings(**{"policy": "LRU", "max_running": 9} | bounds)
        super().__init__(limits, ["one"], lambda: 0.0, self, Capacities(1000), wall_clock=lambda: 0.0, step=step)
        self.calls: list[str] = []
        self.plans: dict[str, PrefillPlan] = {}
        self.reports: list[CompletionReport] = []
        # What a test may clear to hold a call, and await that it came.
        self.leasing, self.confirming = asyncio.Event(), asyncio.Event()
        self.leasing.set()
        self.confirming.set()
        self.at_lease, self.at_confirmation = asyncio.Event(), asyncio.Event()
        self.fails: dict[str, Exception] = {}

    def prefill_seconds(self, cached: int, new: int) -> float:
        return float(new)

    def load_seconds(self, tokens: int, tier: Tier) -> float:
        return 0.0

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
        if plan is not None:
            self.plans[plan.query_id] = plan
        return plan

    async def admit(self, request):
        self._calls("admit")
        plan = self.plans[request.query_id] = await super().admit(request)
        return plan

    async def complete(self, report):
        # What was given up while it waited holds no plan any more.
        with suppress(UnknownPlan):
            await super().complete(report)
            self.reports.append(report)

    def _calls(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise self.fails[name]

    @property
    def outcomes(self) -> dict[str, PlanOutcome]:
        """How each plan ended."""
        assert len(self.reports) == len({report.query_id for report in self.reports}), "a plan completed twice"
        return {report.query_id: report.outcome for report in self.reports}


class Asked:
    """One query, and the events that left so far."""

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
        """Whether nothing has left that rests on documents."""
        return all(isinstance(event, events.QueryCreated | events.RetrievalStage) for event in self.events)


class Scene:
    """Queries over the real controller; search and engine say what the test says. A stack's four parts."""

    def __init__(self, step: StepBudget | None = None, **bounds: int) -> None:
        self.retriever = self.generator = self
        self.layout = FakeLayout()
        self.controller = WatchedController(step, **bounds)
        self.searches: dict[str, Search] = {}
        self.streams: dict[str, Stream] = {}
        self.end_fails: Exception | None = None
        self.answers_by_itself = False
        self.releases = Releases()
        self.registry = CollectorRegistry()
        self.metrics = GatewayMetrics(self.registry)
        # How long an engine takes to let go is chance here, so nothing is learnt of it.
        self.settling = Settling()
        self.ended_ms: list[float] = []
        self.settling.ended = self.ended_ms.append
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
        """Guesses by what the metrics say became of them."""
        (family,) = [family for family in self.registry.collect() if family.name == "ragtree_speculation"]
        counts = {sample.labels["outcome"]: sample.value for sample in family.samples if sample.name.endswith("_total")}
        return {outcome: count for outcome, count in counts.items() if count}

    # What a test does

    def asks(self, query_id: str, include_stages: bool = False, **limits: float) -> Asked:
        pipeline = QueryPipeline(
            self,
            metrics=self.metrics,
            releases=self.releases,
            query_log=QueryLogFile(None, 0),
            settings=GatewaySettings(**limits),
            settling=self.settling,
        )
        self.searches[query_id] = Search()
        query = Query(
            namespace="n",
            model=MODEL,
            search=SearchRequest("default", "default", query_id, 3),
            messages=(ChatMessage("user", "Why?"),),
            question_field="query",
            sampling=Sampling(64),
            include_stages=include_stages,
            query_id=query_id,
        )
        return Asked(pipeline.run(Transcript(query)))

    async def finds(self, query_id: str, documents: str, final: bool = False) -> None:
        """A stage of a search; all has been done about it when this returns."""
        search = self.searches[query_id]
        search.finds(documents, final)
        if final:
            await eventually(lambda: search.closed)
        else:
            await eventually(lambda: search.asked > search.given)

    async def opened(self, plan_id: str) -> Stream:
        await eventually(lambda: plan_id in self.streams)
        return self.streams[plan_id]

    async def given_back(self, *plan_ids: str) -> None:
        """These plans have ended, and so have their streams."""
        await eventually(lambda: all(plan_id in self.controller.outcomes for plan_id in plan_ids))
        assert all(self.streams[plan_id].closed for plan_id in plan_ids if plan_id in self.streams)

    async def at_rest(self) -> None:
        """Assert that nothing is left of any query."""
        await self.releases.drain(5)
        assert len(self.releases) == 0
        # What the loop itself closes, an iterator that an error left, takes it a turn.
        await eventually(lambda: not asyncio.all_tasks() - self.before - {asyncio.current_task()})
        assert all(search.closed for search in self.searches.values() if search.asked)
        assert all(stream.closed for stream in self.streams.values())
        self.controller.check_integrity()
        stats = await self.controller.stats()
        assert (stats.running, stats.queued) == (0, 0)
        assert self.controller._scheduler.instances.idle == ["one"]
        assert not self.controller._scheduler.tree.grants.open
        self.controller.expire_leases()
        assert not self.controller._speculations._running
        assert set(self.controller.outcomes) == set(self.controller.plans)


@pytest.fixture
async def scene():
    scene = Scene()
    yield scene
    await scene.at_rest()


# One query


async def test_figure_11_of_ragcache(scene: Scene):
    query = scene.asks("q")
    await scene.finds("q", "13")
    first = await scene.opened("q~1")
    first.says(2)
    await scene.finds("q", "12")
    second = await scene.opened("q~2")
    await scene.given_back("q~1")
    second.says(2)
    await scene.finds("q", "12")
    assert query.silent
    assert scene.controller.calls == ["start", "speculate", "start", "speculate"], "the same documents ask for nothing"
    await scene.finds("q", "12", final=True)
    assert scene.controller.calls[4:] == ["keep"]
    await eventually(lambda: query.events[-1:] and isinstance(query.events[-1], events.OutputTextDelta))
    second.says(1, finish=True)
    assert await query.answer() == "12 12 12 "
    await scene.at_rest()
    assert scene.controller.outcomes == {"q~1": CANCELLED, "q~2": COMPLETED}


async def test_the_documents_of_a_confirmed_guess_are_found_by_the_next_query(scene: Scene):
    """Whatever the guess before it had reserved."""
    query = scene.asks("q")
    await scene.finds("q", "13")
    await scene.opened("q~1")
    await scene.finds("q", "12")
    (await scene.opened("q~2")).says(2, finish=True)
    await scene.finds("q", "12", final=True)
    await query.answer()
    await scene.at_rest()
    scene.answers_by_itself = True
    again = scene.asks("again")
    await scene.finds("again", "12", final=True)
    await again.answer()
    assert [node.source for node in scene.controller.plans["again"].nodes] == [Tier.GPU] * 3


async def test_no_word_leaves_before_the_documents_are_final_however_many_are_said(scene: Scene):
    query = scene.asks("q", include_stages=True)
    await scene.finds("q", "ab")
    stream = await scene.opened("q~1")
    stream.says(5, finish=True)
    await scene.finds("q", "ab")
    await eventually(lambda: stream.closed)
    assert query.silent
    await scene.finds("q", "ab", final=True)
    assert await query.answer() == "ab " * 5
    kinds = [type(event) for event in query.events]
    assert kinds[:5] == [events.QueryCreated, *[events.RetrievalStage] * 3, events.RetrievalCompleted]


async def test_the_reply_is_on_the_final_documents_and_says_what_speculation_came_to(scene: Scene):
    query = scene.asks("q")
    await scene.finds("q", "b")
    (await scene.opened("q~1")).says(1)
    await scene.finds("q", "ab")
    (await scene.opened("q~2")).says(2, finish=True)
    await scene.finds("q", "ab", final=True)
    await query.answer()
    reply = query.events[-1].response
    assert [result.document_id for result in reply.results] == ["a", "b"]
    assert [cited.document_id for cited in reply.citations] == ["a", "b"]
    said = reply.timings.speculation
    assert (said.outcome, said.generations) == ("confirmed", 2)
    assert 0 < said.began_ms <= reply.timings.total_ms


@pytest.mark.parametrize("final", ["ab", "ba", "a", "abc", "x"])
async def test_final_documents_other_than_the_guess_mean_a_turn_like_any_other(scene: Scene, final: str):
    query = scene.asks("q")
    await scene.finds("q", "ac")
    guess = await scene.opened("q~1")
    guess.says(3, finish=True)
    await scene.finds("q", final, final=True)
    stream = await scene.opened("q")
    stream.says(2, finish=True)
    assert await query.answer() == f"{final} " * 2
    await scene.at_rest()
    assert scene.controller.calls == ["start", "speculate", "admit"], "a turn ends the guess in the controller, too"
    assert scene.controller.outcomes == {"q~1": CANCELLED, "q": COMPLETED}
    assert query.events[-1].response.timings.speculation.outcome == "dropped"


async def test_it_begins_no_sooner_than_is_worth_it(scene: Scene):
    """Searches like this one settle after five of nine stages, and an engine is long in letting go of a guess."""
    kind = ("default", "default", 3, True, True)
    for _ in range(40):
        scene.settling.searched(kind, 5 / 9, 1.0)
        Settling.ended(scene.settling, 9.0)
    query = scene.asks("q")
    for documents in "aab":
        await scene.finds("q", documents)
    assert scene.controller.calls == []
    await scene.finds("q", "b")
    await scene.finds("q", "c")
    assert scene.controller.calls == ["start", "speculate"]
    (await scene.opened("q~1")).says(finish=True)
    before = scene.settling.odds(kind, 4 / 9)
    await scene.finds("q", "c", final=True)
    assert await query.answer() == "c "
    assert scene.settling.odds(kind, 4 / 9) < before, "it settled after five stages again"


async def test_a_search_in_one_stage_teaches_nothing(scene: Scene):
    query = scene.asks("q")
    await scene.finds("q", "a", final=True)
    (await scene.opened("q")).says(finish=True)
    await query.answer()
    assert scene.settling.odds(("default", "default", 3, True, True), 0.5) == 0.5


async def test_how_long_an_engine_takes_to_let_go_is_learnt_from_wrong_guesses_alone(scene: Scene):
    query = scene.asks("q")
    await scene.finds("q", "a")
    broken = await scene.opened("q~1")
    broken.breaks(EngineDied("gone"))
    await eventually(lambda: broken.closed)
    await scene.finds("q", "b")
    await scene.opened("q~2")
    assert scene.ended_ms == []
    await scene.finds("q", "c")
    (await scene.opened("q~3")).says(finish=True)
    await scene.finds("q", "c", final=True)
    await query.answer()
    (ended_ms,) = scene.ended_ms
    assert 0 <= ended_ms <= query.events[-1].timings.total_ms


async def test_nothing_found_ends_the_guess(scene: Scene):
    query = scene.asks("q")
    await scene.finds("q", "a")
    await scene.opened("q~1")
    await scene.finds("q", "")
    await scene.given_back("q~1")
    await scene.finds("q", "b")
    (await scene.opened("q~2")).says(1, finish=True)
    await scene.finds("q", "b", final=True)
    assert await query.answer() == "b "
    assert scene.controller.calls == ["start", "speculate", "drop", "start", "speculate", "keep"]


async def test_a_search_of_one_stage_asks_for_a_turn_and_nothing_else(scene: Scene):
    scene.answers_by_itself = True
    query = scene.asks("q")
    await scene.finds("q", "ab", final=True)
    assert await query.answer() == "ab ab "
    assert scene.controller.calls == ["admit"]
    assert query.events[-1].response.timings.speculation is None


async def test_no_room_means_a_turn_like_any_other():
    scene = Scene(max_running=1)
    other = scene.asks("other")
    await scene.finds("other", "x", final=True)
    running = await scene.opened("other")
    query = scene.asks("q")
    await scene.finds("q", "a")
    await scene.finds("q", "a", final=True)
    assert scene.controller.calls == ["admit", "wait", "admit"]
    running.says(1, finish=True)
    await other.answer()
    (await scene.opened("q")).says(1, finish=True)
    assert await query.answer() == "a "
    await scene.at_rest()


async def test_room_that_is_gone_as_it_is_asked_for_means_searching_on(scene: Scene):
    scene.controller.leasing.clear()
    query = scene.asks("q")
    scene.searches["q"].finds("a", final=False)
    await scene.controller.at_lease.wait()
    others = [scene.asks(f"other {number}") for number in range(9)]
    for number in range(9):
        await scene.finds(f"other {number}", "x", final=True)
        await scene.opened(f"other {number}")
    scene.controller.leasing.set()
    await scene.finds("q", "a")
    assert "q~1" not in scene.controller.plans
    for number, other in enumerate(others):
        scene.streams[f"other {number}"].says(1, finish=True)
        await other.answer()
    await scene.finds("q", "a")
    (await scene.opened("q~2")).says(1, finish=True)
    await scene.finds("q", "a", final=True)
    assert await query.answer() == "a "


# What breaks


@pytest.mark.parametrize("said", [0, 2], ids=["prefilling", "decoding"])
async def test_a_guess_that_breaks_means_a_turn_like_any_other(scene: Scene, said: int):
    query = scene.asks("q")
    await scene.finds("q", "a")
    guess = await scene.opened("q~1")
    guess.says(said)
    guess.breaks(EngineDied("broken"))
    await eventually(lambda: guess.closed)
    await scene.finds("q", "a", final=True)
    (await scene.opened("q")).says(2, finish=True)
    assert await query.answer() == "a a "
    await scene.at_rest()
    assert scene.controller.outcomes == {"q~1": CANCELLED, "q": COMPLETED}


async def test_a_guess_that_breaks_may_begin_anew_at_a_later_stage(scene: Scene):
    query = scene.asks("q")
    await scene.finds("q", "a")
    (await scene.opened("q~1")).breaks(EngineDied("broken"))
    await eventually(lambda: scene.streams["q~1"].closed)
    await scene.finds("q", "b")
    (await scene.opened("q~2")).says(1, finish=True)
    await scene.finds("q", "b", final=True)
    assert await query.answer() == "b "
    await scene.at_rest()
    assert scene.controller.outcomes == {"q~1": CANCELLED, "q~2": COMPLETED}


async def test_a_guess_that_breaks_as_it_is_confirmed_means_a_turn_like_any_other(scene: Scene):
    scene.controller.confirming.clear()
    query = scene.asks("q")
    await scene.finds("q", "a")
    guess = await scene.opened("q~1")
    guess.says(1)
    scene.searches["q"].finds("a", final=True)
    await scene.controller.at_confirmation.wait()
    guess.breaks(EngineDied("broken"))
    await eventually(lambda: guess.closed)
    scene.answers_by_itself = True
    scene.controller.confirming.set()
    assert await query.answer() == "a a "
    await scene.at_rest()
    assert scene.controller.outcomes == {"q~1": CANCELLED, "q": COMPLETED}


async def test_a_guess_that_cannot_be_ended_is_closed_all_the_same(scene: Scene):
    query = scene.asks("q")
    await scene.finds("q", "a")
    guess = await scene.opened("q~1")
    scene.end_fails = EngineDied("gone")
    await scene.finds("q", "b")
    await scene.given_back("q~1")
    assert guess.closed
    (await scene.opened("q~2")).says(1, finish=True)
    await scene.finds("q", "b", final=True)
    assert await query.answer() == "b "


async def test_a_confirmed_guess_that_breaks_fails_like_any_other(scene: Scene):
    query = scene.asks("q")
    await scene.finds("q", "a")
    stream = await scene.opened("q~1")
    stream.says(1)
    await scene.finds("q", "a", final=True)
    await eventually(lambda: not query.silent)
    stream.breaks(EngineDied("broken"))
    with pytest.raises(EngineDied):
        await query.task
    await scene.at_rest()
    assert scene.controller.outcomes == {"q~1": FAILED}


@pytest.mark.parametrize("call", ["on_candidates", "speculate"])
async def test_a_controller_that_is_gone_fails_the_query_and_leaves_nothing(scene: Scene, call: str):
    query = scene.asks("q")
    await scene.finds("q", "b")
    await scene.opened("q~1")
    scene.controller.fails[call] = Unavailable("gone")
    scene.searches["q"].finds("a", final=False)
    if call == "speculate":
        await scene.given_back("q~1")
        await eventually(lambda: scene.controller.calls[-1] == "speculate")
        scene.searches["q"].finds("a", final=False)
    with pytest.raises(Unavailable):
        await query.task
    await scene.at_rest()
    assert list(scene.controller.outcomes) == ["q~1"]


async def test_a_search_that_breaks_ends_the_guess(scene: Scene):
    query = scene.asks("q")
    await scene.finds("q", "a")
    (await scene.opened("q~1")).says(1)
    scene.searches["q"].stages.put_nowait(Unavailable("gone"))
    with pytest.raises(Unavailable):
        await query.task
    await scene.at_rest()
    assert scene.controller.outcomes == {"q~1": FAILED}


async def test_a_guess_whose_first_token_is_late_means_a_turn_like_any_other(scene: Scene):
    query = scene.asks("q", first_step_timeout_s=0.05)
    await scene.finds("q", "a")
    guess = await scene.opened("q~1")
    await eventually(lambda: guess.closed)
    scene.answers_by_itself = True
    await scene.finds("q", "a", final=True)
    assert await query.answer() == "a a "
    await scene.at_rest()
    assert scene.controller.outcomes == {"q~1": CANCELLED, "q": COMPLETED}


async def test_time_is_up_while_a_guess_runs(scene: Scene):
    query = scene.asks("q", query_timeout_s=0.1)
    await scene.finds("q", "a")
    (await scene.opened("q~1")).says(1)
    with pytest.raises(DeadlineExceeded):
        await query.task
    await scene.at_rest()
    assert scene.controller.outcomes == {"q~1": FAILED}


# A client that leaves


async def searching(scene: Scene) -> None:
    await eventually(lambda: scene.searches["q"].asked == 1)


async def leasing(scene: Scene) -> None:
    scene.controller.leasing.clear()
    scene.searches["q"].finds("a", final=False)
    await scene.controller.at_lease.wait()


async def prefilling(scene: Scene) -> None:
    await scene.finds("q", "a")
    await scene.opened("q~1")


async def decoding(scene: Scene) -> None:
    await prefilling(scene)
    scene.streams["q~1"].says(2)
    # Its first token was told.
    await eventually(lambda: not scene.controller._leases._prefilling)


async def replacing(scene: Scene) -> None:
    await decoding(scene)
    scene.controller.at_lease.clear()
    scene.controller.leasing.clear()
    scene.searches["q"].finds("b", final=False)
    await scene.controller.at_lease.wait()


async def all_said(scene: Scene) -> None:
    await decoding(scene)
    scene.streams["q~1"].says(1, finish=True)
    await eventually(lambda: scene.streams["q~1"].closed)


async def confirming(scene: Scene) -> None:
    await decoding(scene)
    scene.controller.confirming.clear()
    scene.searches["q"].finds("a", final=True)
    await scene.controller.at_confirmation.wait()


async def confirmed(scene: Scene) -> None:
    await decoding(scene)
    await scene.finds("q", "a", final=True)
    await eventually(lambda: "keep" in scene.controller.calls)


async def dropped(scene: Scene) -> None:
    await decoding(scene)
    await scene.finds("q", "b", final=True)
    await scene.opened("q")


PHASES = [searching, leasing, prefilling, decoding, replacing, all_said, confirming, confirmed, dropped]


@pytest.mark.parametrize("phase", PHASES)
async def test_a_client_that_leaves_leaves_nothing_running(scene: Scene, phase):
    query = scene.asks("q")
    await phase(scene)
    await query.leaves()
    scene.controller.leasing.set()
    await scene.at_rest()
    plans = set() if phase in (searching, leasing) else {"q~1", "q"} if phase is dropped else {"q~1"}
    assert scene.controller.outcomes == dict.fromkeys(plans, CANCELLED)


async def test_a_client_that_leaves_after_any_number_of_turns_of_the_loop_leaves_nothing_running():
    speculated = 0
    for turns in range(400):
        scene = Scene()
        scene.answers_by_itself = True
        query = scene.asks("q")
        for documents, final in (("ab", False), ("ac", False), ("ac", False), ("ac", True)):
            scene.searches["q"].finds(documents, final)
        for _ in range(turns):
            await asyncio.sleep(0)
        query.task.cancel()
        await asyncio.wait({query.task})
        await scene.at_rest()
        speculated += len(scene.controller.plans) > 0
        if not query.task.cancelled():
            break
    assert await query.answer() == "ac ac "
    assert speculated > 3, "too few cancellations to mean anything"


@pytest.mark.parametrize(
    ("phase", "outcomes"),
    [
        (leasing, {}),
        (prefilling, {"abandoned": 1}),
        (replacing, {"wrong": 1}),
        (all_said, {"abandoned": 1}),
        (confirming, {"abandoned": 1}),
        (confirmed, {"confirmed": 1}),
        (dropped, {"wrong": 1}),
    ],
)
async def test_each_guess_is_counted_once_as_what_became_of_it(scene: Scene, phase, outcomes: dict[str, int]):
    query = scene.asks("q")
    await phase(scene)
    await query.leaves()
    scene.controller.leasing.set()
    assert scene.counted == outcomes


# Requests of others


async def test_a_request_that_needs_the_engine_ends_a_guess_and_both_are_answered():
    scene = Scene(max_running=1)
    query = scene.asks("q")
    await scene.finds("q", "a")
    guess = await scene.opened("q~1")
    guess.says(1)
    other = scene.asks("other")
    await scene.finds("other", "x", final=True)
    stream = await scene.opened("other")
    assert scene.controller.plans["other"].ends == ("q~1",)
    await eventually(lambda: guess.closed)
    await scene.finds("q", "a", final=True)
    assert query.silent or isinstance(query.events[-1], events.RetrievalCompleted)
    stream.says(2, finish=True)
    assert await other.answer() == "x x "
    (await scene.opened("q")).says(2, finish=True)
    assert await query.answer() == "a a "
    await scene.at_rest()
    assert scene.controller.outcomes == {"q~1": CANCELLED, "other": COMPLETED, "q": COMPLETED}
    assert scene.counted == {"gave_way": 1}


async def test_a_guess_that_gave_way_begins_anew_when_there_is_room_again():
    scene = Scene(max_running=1)
    query = scene.asks("q")
    await scene.finds("q", "a")
    await scene.opened("q~1")
    other = scene.asks("other")
    await scene.finds("other", "x", final=True)
    (await scene.opened("other")).says(1, finish=True)
    await other.answer()
    await eventually(lambda: scene.streams["q~1"].closed and "other" in scene.controller.outcomes)
    await scene.finds("q", "a")
    await scene.given_back("q~1")
    (await scene.opened("q~2")).says(1, finish=True)
    await scene.finds("q", "a", final=True)
    assert await query.answer() == "a "
    await scene.at_rest()


async def test_a_confirmed_guess_keeps_its_place_from_a_request():
    scene = Scene(max_running=1)
    query = scene.asks("q")
    await scene.finds("q", "a")
    stream = await scene.opened("q~1")
    await scene.finds("q", "a", final=True)
    other = scene.asks("other")
    await scene.finds("other", "x", final=True)
    assert (await scene.controller.stats()).queued == 1
    stream.says(1, finish=True)
    assert await query.answer() == "a "
    (await scene.opened("other")).says(1, finish=True)
    assert await other.answer() == "x "
    assert scene.controller.plans["other"].ends == ()
    await scene.at_rest()


# Whatever is found, said and asked

searches = st.lists(st.tuples(st.sampled_from(["", "a", "b", "ab", "ba", "abc"]), st.integers(0, 3)), max_size=5)


@settings(max_examples=150, deadline=None)
@given(
    stages=searches,
    final=st.sampled_from(["a", "b", "ab", "ba", "abc"]),
    breaks_at=st.none() | st.integers(0, 4),
    other_at=st.none() | st.integers(0, 4),
    max_running=st.integers(1, 3),
)
def test_whatever_leaves_rests_on_the_final_documents(stages, final, breaks_at, other_at, max_running):
    async def play():
        scene = Scene(max_running=max_running)
        query = scene.asks("q")
        other = None
        for number, (documents, words) in enumerate(stages):
            await scene.finds("q", documents)
            for stream in guesses(scene):
                stream.says(words, finish=words == 3)
                if number == breaks_at:
                    stream.breaks(EngineDied("broken"))
            if number == other_at:
                other = scene.asks("other")
                await scene.finds("other", "x", final=True)
                await scene.opened("other")
            assert query.silent
        if other is not None:
            scene.streams["other"].says(1, finish=True)
            assert await other.answer() == "x "
        scene.answers_by_itself = True
        await scene.finds("q", final, final=True)
        for stream in guesses(scene):
            stream.says(1, finish=True)
        words = (await query.answer()).split()
        assert set(words) == {final}
        retrieved = [isinstance(event, events.RetrievalCompleted) for event in query.events].index(True)
        deltas = [isinstance(event, events.OutputTextDelta) for event in query.events]
        assert deltas.index(True) > retrieved
        await scene.at_rest()
        answered = [plan for plan, outcome in scene.controller.outcomes.items() if outcome is COMPLETED]
        (plan,) = (plan for plan in answered if plan != "other")
        assert scene.streams[plan].documents == final

    asyncio.run(asyncio.wait_for(play(), 10))


def guesses(scene: Scene) -> Iterator[Stream]:
    """The open streams of the query's guesses."""
    return (stream for plan_id, stream in scene.streams.items() if plan_id.startswith("q~") and not stream.closed)


# Over HTTP


@pytest.fixture
def speculative(stack: Stack) -> Stack:
    stack.controller.decide = whenever_possible
    return stack


async def ask(served, **body: object) -> dict:
    answer = await served.client.post("/query", json={"query": "x", "top_k": 1} | body)
    assert answer.status_code == 200
    return answer.json()


def without_chance(reply: dict) -> dict:
    return {key: value for key, value in reply.items() if key not in ("query_id", "created_at", "timings")}


@pytest.mark.parametrize(("top_k", "outcome"), [(1, "confirmed"), (3, "dropped")])
async def test_the_json_reply_is_the_one_without_speculation(served, stack: Stack, top_k: int, outcome: str):
    without = await ask(served, top_k=top_k)
    assert without["timings"]["speculation"] is None
    stack.controller.decide = whenever_possible
    reply = await ask(served, top_k=top_k)
    assert without_chance(reply) == without_chance(without)
    assert reply["output_text"] == "".join(ANSWER)
    assert reply["timings"]["speculation"]["outcome"] == outcome
    assert len(stack.controller.admitted) == (1 if outcome == "confirmed" else 2)


@pytest.mark.parametrize("phase", ["second_stage", "speculate", "prefill", "decode", "confirm"])
async def test_a_client_that_leaves_over_http(over_http, speculative: Stack, phase: str):
    phases = speculative.phases
    phases.held |= {"second_stage", phase} - ({"second_stage"} if phase == "confirm" else set())
    async with over_http() as live:
        asking = asyncio.create_task(live.client.post("/query", json={"query": "x", "top_k": 1}))
        await phases.reached[phase].wait()
        asking.cancel()
        await asyncio.wait({asking})
        await eventually(lambda: live.running == 0 and speculative.at_rest)
        await eventually(lambda: not len(speculative.controller.speculated) or bool(speculative.controller.reports))
    reports = speculative.controller.reports
    assert len({report.query_id for report in reports}) == len(reports) == 1
    assert reports[0].outcome is CANCELLED
    assert reports[0].query_id.endswith("~1")
    assert speculative.generator.calls["opened"] == speculative.generator.calls["closed"]
