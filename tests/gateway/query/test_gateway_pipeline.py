import asyncio

import msgspec
import pytest
from fake_layout import FakeLayout
from gateway_fakes import ANSWER, MODEL, Stack
from prometheus_client import CollectorRegistry
from varied import varied

from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.query.pipeline import QueryPipeline
from gateway.query.query import Query
from gateway.query.speculation_start import SpeculationStart
from gateway.query.transcript import Transcript
from gateway.settings import GatewaySettings
from gateway.stores.query_log import QueryLogFile
from gateway.tasks import BackgroundTasks
from gateway.wire import events
from protocol.errors import (
    DeadlineExceeded,
    EngineDied,
    EngineFailed,
    InternalError,
    NoDocuments,
    Overloaded,
    QuestionTooLong,
    RetrieverNotReady,
)
from protocol.generation import Sampling
from protocol.kv import LostCopy
from protocol.plans import PlanOutcome
from protocol.prompts import ChatMessage
from protocol.retrieval import SearchRequest, StoreRevision
from protocol.tiers import Tier


class Bench:
    """A pipeline over the fakes, without HTTP."""

    def __init__(self, stack: Stack, **settings: float) -> None:
        self.stack = stack
        self.tasks = BackgroundTasks()
        self.registry = CollectorRegistry()
        self.pipeline = QueryPipeline(
            stack,
            metrics=GatewayMetrics(self.registry),
            tasks=self.tasks,
            query_log=QueryLogFile(None, 0),
            settings=varied(GatewaySettings, **settings),
            speculation_start=SpeculationStart(),
        )

    def query(self, **changes: object) -> Query:
        query = Query(
            namespace="n",
            caller="caller",
            model=MODEL,
            search=SearchRequest("default", "default", "What is the capital?", 3),
            messages=(ChatMessage("user", "What is the capital?"),),
            question_field="query",
            sampling=Sampling(64),
        )
        return msgspec.structs.replace(query, **changes)

    async def events(self, **changes: object) -> list[events.Event]:
        return [event async for event in self.pipeline.run(Transcript(self.query(**changes)))]

    async def settled(self) -> None:
        await self.tasks.drain(5)
        assert len(self.tasks) == 0
        assert self.stack.at_rest


def ended_in(phase: str, outcome: PlanOutcome) -> list[PlanOutcome]:
    """Completion reports of a query that ends in this phase: none before it asked for a plan."""
    return [outcome] if phase in ("queue", "prefill", "decode") else []


@pytest.fixture
def bench(stack: Stack) -> Bench:
    return Bench(stack)


async def test_admission_has_the_revisions_that_the_search_saw(bench: Bench):
    bench.stack.retriever.revision = StoreRevision("fake", 7)
    await bench.events()
    (asked,) = bench.stack.controller.admitted
    assert asked.found_at == (StoreRevision("fake", 7),)


async def test_events_are_ordered_and_numbered(bench: Bench):
    seen = await bench.events()
    assert [type(event) for event in seen] == [
        events.QueryCreated,
        events.RetrievalCompleted,
        events.CacheResolved,
        *[events.AnnotationAdded] * 3,
        *[events.OutputTextDelta] * len(ANSWER),
        events.QueryCompleted,
    ]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert len({event.query_id for event in seen}) == 1


async def test_reply_matches_the_events(bench: Bench):
    seen = await bench.events()
    reply = seen[-1].response
    assert reply.output_text == "".join(event.delta for event in seen if isinstance(event, events.OutputTextDelta))
    assert reply.results == seen[1].results
    assert list(reply.citations) == [e.annotation for e in seen if isinstance(e, events.AnnotationAdded)]
    assert reply.usage.prompt_tokens == 2 + 3 * 3 + 4
    assert reply.usage.completion_tokens == len(ANSWER)
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.prompt_tokens_details.cached_tokens == 3
    assert (reply.timings.queue_ms, reply.timings.retrieval_ms, reply.timings.prefill_ms) == (4.0, 2.5, 7.0)
    assert reply.timings.overtakes == 2
    assert 0 < reply.timings.ttft_ms <= reply.timings.total_ms


async def test_controller_gets_every_provisional_stage(bench: Bench):
    seen = await bench.events(include_stages=True)
    stages = [event for event in seen if isinstance(event, events.RetrievalStage)]
    assert [(stage.stage, stage.final) for stage in stages] == [(1, False), (2, True)]
    assert bench.stack.controller.candidates == [("hash0",)]


async def test_completed_query_is_reported_once(bench: Bench):
    await bench.events()
    await bench.settled()
    (report,) = bench.stack.controller.reports
    assert report.outcome is PlanOutcome.COMPLETED
    assert (report.cached_tokens, report.computed_tokens, report.completion_tokens) == (3, 12, len(ANSWER))


@pytest.mark.parametrize("unwritten", [None, (), (LostCopy("abcd", Tier.DISK),)])
async def test_the_controller_hears_what_a_plan_has_written(bench: Bench, unwritten: tuple[LostCopy, ...] | None):
    bench.stack.generator.unwritten = unwritten
    await bench.events()
    await bench.settled()
    (report,) = bench.stack.controller.reports
    assert report.unwritten == unwritten


async def test_dropped_documents_are_listed_and_not_cited(bench: Bench):
    bench.stack.layout.context = 2 + 3 * 2 + 4 + 64
    reply = (await bench.events())[-1].response
    assert [result.document_id for result in reply.results] == ["d0", "d1", "d2"]
    assert [cited.document_id for cited in reply.citations] == ["d0", "d1"]
    assert (reply.dropped_documents, reply.dropped_chunk_ids) == (1, ("d2#0",))


@pytest.mark.parametrize(("cached", "hits"), [(0, 0), (3, 0), (5, 1), (7, 1), (15, 3)])
async def test_hit_docs_counts_fully_cached_documents(bench: Bench, cached: int, hits: int):
    # The prompt: a system prompt of two tokens, three documents of three, a question of four.
    bench.stack.generator.cached = cached
    (resolved,) = [event for event in await bench.events() if isinstance(event, events.CacheResolved)]
    assert (resolved.cached_tokens, resolved.hit_docs) == (cached, hits)


async def test_answer_at_max_tokens_has_finish_reason_length(bench: Bench):
    last = (await bench.events(sampling=Sampling(2)))[-1]
    assert isinstance(last, events.QueryCompleted)
    assert (last.response.finish_reason, last.response.output_text) == ("length", "".join(ANSWER[:2]))


@pytest.mark.parametrize("phase", ["search", "second_stage", "on_candidates", "queue", "prefill", "decode"])
@pytest.mark.parametrize("error", [RetrieverNotReady("gone"), RuntimeError("defect")])
async def test_failure_in_any_phase_is_reported_once(bench: Bench, phase: str, error: Exception):
    bench.stack.phases.failing[phase] = error
    with pytest.raises(type(error)):
        await bench.events()
    await bench.settled()
    assert [report.outcome for report in bench.stack.controller.reports] == ended_in(phase, PlanOutcome.FAILED)


async def test_cancellation_at_any_loop_iteration_is_reported_once(bench: Bench):
    reported: list[list[PlanOutcome]] = []
    for turns in range(200):
        bench.stack.controller.reports.clear()
        query = asyncio.create_task(bench.events())
        for _ in range(turns):
            await asyncio.sleep(0)
        query.cancel()
        await asyncio.wait({query})
        await bench.settled()
        reported.append([report.outcome for report in bench.stack.controller.reports])
        if not query.cancelled():
            break
    assert reported.pop() == [PlanOutcome.COMPLETED]
    # No report before a plan is asked for, then exactly one.
    searching = reported.count([])
    assert reported == [[]] * searching + [[PlanOutcome.CANCELLED]] * (len(reported) - searching)
    assert searching > 3, "too few cancellations to mean anything"
    assert len(reported) - searching > 10, "too few cancellations to mean anything"


async def test_closing_at_any_event_is_reported_once(bench: Bench):
    count = len(await bench.events())
    for number in range(1, count + 1):
        await bench.settled()
        bench.stack.controller.reports.clear()
        run = bench.pipeline.run(Transcript(bench.query()))
        for _ in range(number):
            await anext(run)
        await run.aclose()
        await bench.settled()
        outcomes = [report.outcome for report in bench.stack.controller.reports]
        if number == 1:
            assert outcomes == [], "nothing was asked for"
        else:
            assert outcomes == [PlanOutcome.COMPLETED if number == count else PlanOutcome.CANCELLED]


async def test_release_waits_for_a_slow_controller(bench: Bench):
    bench.stack.phases.held |= {"decode", "complete"}
    query = asyncio.create_task(bench.events())
    await bench.stack.phases.reached["decode"].wait()
    query.cancel()
    await asyncio.wait({query})
    await bench.stack.phases.reached["complete"].wait()
    assert bench.stack.generator.calls["closed"] == 1, "the stream must be closed before the plan is released"
    bench.stack.phases.released["complete"].set()
    await bench.settled()
    assert len(bench.stack.controller.reports) == 1


async def test_failed_completion_report_breaks_no_query(bench: Bench):
    bench.stack.phases.failing["complete"] = RuntimeError("controller gone")
    assert isinstance((await bench.events())[-1], events.QueryCompleted)
    await bench.settled()


async def test_no_token_before_the_documents_are_final(bench: Bench):
    bench.stack.phases.held.add("second_stage")
    query = asyncio.create_task(bench.events())
    await bench.stack.phases.reached["second_stage"].wait()
    assert bench.stack.generator.calls["opened"] == 0
    assert bench.stack.controller.admitted == []
    bench.stack.phases.released["second_stage"].set()
    await query


async def test_retrieval_event_precedes_a_slow_first_token(bench: Bench):
    bench.stack.phases.held.add("prefill")
    run = bench.pipeline.run(Transcript(bench.query()))
    assert isinstance(await anext(run), events.QueryCreated)
    assert isinstance(await anext(run), events.RetrievalCompleted)
    bench.stack.phases.released["prefill"].set()
    assert isinstance(await anext(run), events.CacheResolved)
    await run.aclose()


async def test_retrieval_event_is_sent_while_queued(stack: Stack):
    bench = Bench(stack, hold_back_s=0.01)
    stack.phases.held.add("queue")
    run = bench.pipeline.run(Transcript(bench.query()))
    seen = [await anext(run), await anext(run)]
    assert isinstance(seen[-1], events.RetrievalCompleted)
    assert stack.controller.waiting == 1
    await run.aclose()
    await bench.settled()
    assert stack.controller.admitted == []


async def test_full_queue_refuses_before_the_retrieval_event(bench: Bench):
    bench.stack.phases.failing["queue"] = Overloaded("full")
    run = bench.pipeline.run(Transcript(bench.query()))
    await anext(run)
    with pytest.raises(Overloaded):
        await anext(run)


@pytest.mark.parametrize("phase", ["search", "second_stage", "on_candidates", "queue", "prefill", "decode"])
async def test_timeout_in_any_phase(stack: Stack, phase: str):
    bench = Bench(stack, query_timeout_s=0.05, hold_back_s=0.01)
    stack.phases.held.add(phase)
    with pytest.raises(DeadlineExceeded):
        await bench.events()
    await bench.settled()
    assert [report.outcome for report in stack.controller.reports] == ended_in(phase, PlanOutcome.FAILED)


async def test_first_step_has_its_own_limit(stack: Stack):
    bench = Bench(stack, first_step_timeout_s=0.02)
    stack.phases.held.add("prefill")
    with pytest.raises(DeadlineExceeded):
        await bench.events()


async def test_first_step_limit_does_not_apply_to_later_steps(stack: Stack):
    bench = Bench(stack, first_step_timeout_s=0.02)
    stack.phases.held.add("decode")
    query = asyncio.create_task(bench.events())
    await stack.phases.reached["decode"].wait()
    asyncio.get_running_loop().call_later(0.05, stack.phases.released["decode"].set)
    assert isinstance((await query)[-1], events.QueryCompleted)


async def test_stream_without_finish_reason_is_a_dead_engine(bench: Bench):
    bench.stack.generator.words = ()
    with pytest.raises(EngineFailed) as caught:
        await bench.events()
    assert isinstance(caught.value.__cause__, EngineDied)


async def test_search_without_final_documents_is_an_internal_error(bench: Bench, monkeypatch):
    async def nothing(_request):
        return
        yield

    monkeypatch.setattr(bench.stack.retriever, "search", nothing)
    with pytest.raises(InternalError):
        await bench.events()


async def test_question_too_long_is_not_queued(bench: Bench):
    bench.stack.layout = FakeLayout(context=5)
    bench = Bench(bench.stack)
    with pytest.raises(QuestionTooLong):
        await bench.events()
    assert not bench.stack.phases.reached["queue"].is_set()


async def test_optional_documents_may_be_missing(bench: Bench):
    search = SearchRequest("default", "empty", "What?", 3)
    with pytest.raises(NoDocuments):
        await bench.events(search=search)
    reply = (await bench.events(search=search, documents_optional=True))[-1].response
    assert (reply.results, reply.citations, reply.output_text) == ((), (), "".join(ANSWER))


async def test_query_metrics(bench: Bench):
    await bench.events()
    value = bench.registry.get_sample_value
    assert value("ragtree_time_to_first_token_seconds_count") == 1
    assert value("ragtree_request_duration_seconds_count") == 1
    assert value("ragtree_retrieval_stage_seconds_sum", {"stage": "2"}) == pytest.approx(0.0015)
    assert value("ragtree_queue_wait_seconds_sum") == pytest.approx(0.004)
    assert value("ragtree_queue_overtakes_sum") == 2
    assert value("ragtree_retrieval_non_overlapped_seconds_sum") == pytest.approx(0.0025)
    assert value("ragtree_cache_tokens_total", {"source": "gpu"}) == 3
    assert value("ragtree_cache_tokens_total", {"source": "computed"}) == 12


async def test_query_without_a_token_has_no_time_to_first_token(bench: Bench):
    bench.stack.phases.failing["queue"] = Overloaded("full")
    with pytest.raises(Overloaded):
        await bench.events()
    assert bench.registry.get_sample_value("ragtree_time_to_first_token_seconds_count") == 0
    assert bench.registry.get_sample_value("ragtree_request_duration_seconds_count") == 1
