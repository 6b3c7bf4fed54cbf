"""The spans of queries."""

import asyncio
from collections.abc import Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
from asgi_lifespan import LifespanManager
from gateway_fakes import ANSWER, MODEL, Stack, eventually, whenever_possible
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from gateway.app import create_app
from gateway.query.tracing import Tracing
from gateway.settings import GatewaySettings
from protocol.errors import EngineDied, NoDocuments, Overloaded
from protocol.tiers import Tier

QUESTION = "What is the capital of Ruritania?"
ASKED = {"query": QUESTION, "top_k": 3}
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
WORKFLOW, RETRIEVAL, CHAT = "invoke_workflow ragtree", "retrieval default", f"chat {MODEL}"


class Traced:
    """The gateway with a tracer, and the recorded spans."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.closed = 0
        self.app = create_app(stack, GatewaySettings(), tracing=Tracing(provider.get_tracer("tests"), self._close))

    def _close(self) -> None:
        self.closed += 1

    @property
    def spans(self) -> list[ReadableSpan]:
        """The ended spans, ordered by start."""
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time)

    def tree(self) -> list[tuple[str, str | None]]:
        """Each span's name, and its parent's."""
        names = {span.context.span_id: span.name for span in self.spans}
        return [(span.name, span.parent and names.get(span.parent.span_id)) for span in self.spans]

    def one(self, name: str) -> ReadableSpan:
        (span,) = (span for span in self.spans if span.name == name)
        return span

    @asynccontextmanager
    async def client(self):
        async with (
            LifespanManager(self.app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app=self.app), base_url="http://gateway") as client,
        ):
            yield client

    async def ask(self, **headers: str) -> httpx.Response:
        async with self.client() as client:
            return await client.post("/query", json=ASKED, headers=headers)


@pytest.fixture
def traced(stack: Stack) -> Iterator[Traced]:
    traced = Traced(stack)
    yield traced
    for span in traced.spans:
        told = span.to_json()
        assert QUESTION not in told
        assert "document number" not in told
        assert not any(word.strip() in told.split() for word in ANSWER)


async def test_query_has_its_spans_and_attributes(traced: Traced):
    traced.stack.generator.cached = 5
    traced.stack.generator.loaded = {Tier.HOST: 5}
    reply = (await traced.ask()).json()
    assert traced.tree() == [(WORKFLOW, None), (RETRIEVAL, WORKFLOW), (CHAT, WORKFLOW)]
    workflow, retrieval, chat = (traced.one(name) for name in (WORKFLOW, RETRIEVAL, CHAT))
    assert workflow.attributes == {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "ragtree",
        "gen_ai.provider.name": "ragtree",
        "gen_ai.request.model": MODEL,
        "ragtree.query_id": reply["query_id"],
        "gen_ai.usage.input_tokens": reply["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": len(ANSWER),
        "gen_ai.usage.cache_read.input_tokens": 5,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": reply["timings"]["ttft_ms"] / 1000,
    }
    assert retrieval.attributes == {
        "gen_ai.operation.name": "retrieval",
        "gen_ai.provider.name": "ragtree",
        "gen_ai.request.model": MODEL,
        "gen_ai.data_source.id": "default",
        "gen_ai.request.top_k": 3,
        "ragtree.documents": 3,
        "ragtree.partial": False,
    }
    assert [dict(event.attributes) for event in retrieval.events] == [
        {"ragtree.stage": 1, "ragtree.documents": 1},
        {"ragtree.stage": 2, "ragtree.documents": 3},
    ]
    first_token_s = chat.attributes["gen_ai.response.time_to_first_chunk"]
    assert 0 < first_token_s <= (chat.end_time - chat.start_time) / 1e9
    assert chat.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "ragtree",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.max_tokens": 256,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.usage.input_tokens": reply["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": len(ANSWER),
        "gen_ai.usage.cache_read.input_tokens": 5,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": first_token_s,
        "ragtree.generator": "engine-0",
        "ragtree.queue_ms": 4.0,
        "ragtree.speculative": False,
    }
    assert [event.name for event in chat.events] == ["first_token"]
    assert [span.kind for span in (workflow, retrieval, chat)] == [SpanKind.INTERNAL, SpanKind.CLIENT, SpanKind.CLIENT]
    assert {span.status.status_code for span in traced.spans} == {StatusCode.UNSET}
    assert workflow.start_time <= retrieval.start_time < retrieval.end_time <= chat.start_time < chat.end_time
    assert chat.end_time <= workflow.end_time
    assert traced.closed == 1


async def test_query_and_search_continue_the_callers_trace(traced: Traced):
    await traced.ask(traceparent=f"00-{TRACE}-{PARENT}-01")
    assert {format_trace_id(span.context.trace_id) for span in traced.spans} == {TRACE}
    assert format_span_id(traced.one(WORKFLOW).parent.span_id) == PARENT
    (request,) = traced.stack.retriever.requests
    assert request.traceparent == f"00-{TRACE}-{format_span_id(traced.one(RETRIEVAL).context.span_id)}-01"


async def test_unsampled_caller_is_not_traced(traced: Traced):
    assert (await traced.ask(traceparent=f"00-{TRACE}-{PARENT}-00")).status_code == 200
    assert traced.spans == []


@pytest.mark.parametrize("nonsense", ["", "00-0-0-01", f"00-{'0' * 32}-{PARENT}-01", "x" * 5000])
async def test_malformed_traceparent_starts_a_new_trace(traced: Traced, nonsense: str):
    assert (await traced.ask(traceparent=nonsense)).status_code == 200
    assert traced.one(WORKFLOW).parent is None


@pytest.mark.parametrize(
    ("phase", "error", "kind", "failed"),
    [
        ("search", NoDocuments(f"nothing about {QUESTION}"), "no_documents", {WORKFLOW, RETRIEVAL}),
        ("second_stage", ValueError(QUESTION), "ValueError", {WORKFLOW, RETRIEVAL}),
        ("queue", Overloaded("full"), "overloaded", {WORKFLOW}),
        ("decode", EngineDied(QUESTION), "engine_died", {WORKFLOW, CHAT}),
    ],
)
async def test_error_spans_have_the_error_type_only(
    traced: Traced, phase: str, error: Exception, kind: str, failed: set[str]
):
    traced.stack.phases.failing[phase] = error
    assert (await traced.ask()).status_code >= 400
    spans = {span.name: span for span in traced.spans}
    assert {name for name, span in spans.items() if span.status.status_code is StatusCode.ERROR} == failed
    assert {span.attributes.get("error.type") for name, span in spans.items() if name in failed} == {kind}
    assert {span.status.description for span in spans.values()} == {None}


@pytest.mark.parametrize(
    ("phase", "inside"),
    [
        ("search", {RETRIEVAL}),
        ("second_stage", {RETRIEVAL}),
        ("queue", set()),
        ("prefill", {CHAT}),
        ("decode", {CHAT}),
    ],
)
async def test_cancelled_query_ends_its_spans_without_error(traced: Traced, phase: str, inside: set[str]):
    traced.stack.phases.held.add(phase)
    async with traced.client() as client:
        asking = asyncio.create_task(client.post("/query", json=ASKED))
        await eventually(lambda: traced.stack.phases.waiting[phase] > 0)
        for task in traced.app.state.gateway.runs._tasks:
            task.cancel()
        assert (await asking).status_code == 503
    assert {span.name for span in traced.spans if "ragtree.cancelled" in span.attributes} == {WORKFLOW, *inside}
    assert {span.name for span in traced.spans} == {WORKFLOW, RETRIEVAL, *inside}
    assert {span.status.status_code for span in traced.spans} == {StatusCode.UNSET}


async def test_confirmed_speculation_has_one_chat_span(traced: Traced):
    traced.stack.controller.decide = whenever_possible
    traced.stack.retriever.collections["default", "default"] = 1
    assert (await traced.ask()).status_code == 200
    assert traced.tree() == [(WORKFLOW, None), (RETRIEVAL, WORKFLOW), (CHAT, WORKFLOW)]
    chat = traced.one(CHAT)
    assert chat.attributes["ragtree.speculative"]
    assert chat.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert chat.start_time < traced.one(RETRIEVAL).end_time, "it must overlap the search"
    events = [(event.name, dict(event.attributes)) for event in traced.one(WORKFLOW).events]
    assert events == [("speculation", {"ragtree.outcome": "confirmed"})]


async def test_wrong_speculation_has_a_cancelled_chat_span(traced: Traced):
    traced.stack.controller.decide = whenever_possible
    assert (await traced.ask()).status_code == 200
    assert traced.tree() == [(WORKFLOW, None), (RETRIEVAL, WORKFLOW), (CHAT, WORKFLOW), (CHAT, WORKFLOW)]
    wrong, right = (span for span in traced.spans if span.name == CHAT)
    assert wrong.attributes["ragtree.speculative"]
    assert wrong.attributes["ragtree.cancelled"]
    assert "ragtree.cancelled" not in right.attributes
    assert not right.attributes["ragtree.speculative"]
    assert [dict(event.attributes) for event in traced.one(WORKFLOW).events] == [{"ragtree.outcome": "wrong"}]


async def test_retried_query_has_two_chat_spans(traced: Traced):
    stream = traced.stack.generator.stream
    lost: list[str] = []

    async def once_lost(plan, sampling):
        if not lost:
            lost.append(plan.query_id)
            raise EngineDied("the instance is gone")
        async for step in stream(plan, sampling):
            yield step

    traced.stack.generator.stream = once_lost
    assert (await traced.ask()).status_code == 200
    first, second = (span for span in traced.spans if span.name == CHAT)
    assert first.attributes["error.type"] == "engine_died"
    assert first.end_time <= second.start_time
    assert second.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert traced.one(WORKFLOW).status.status_code is StatusCode.UNSET


async def test_chat_without_documents_ends_its_search_span(traced: Traced):
    traced.stack.retriever.collections["default", "default"] = 0
    async with traced.client() as client:
        body = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}]}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    retrieval = traced.one(RETRIEVAL)
    assert retrieval.attributes["ragtree.documents"] == 0
    assert retrieval.end_time <= traced.one(CHAT).start_time


async def test_without_a_tracer_the_search_has_no_traceparent(served):
    await served.client.post("/query", json=ASKED)
    (request,) = served.stack.retriever.requests
    assert request.traceparent is None


async def test_search_without_generation_has_one_span(traced: Traced):
    async with traced.client() as client:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        assert (await client.post("/search", json=ASKED, headers=headers)).status_code == 200
    (span,) = traced.spans
    assert (span.name, span.kind, span.status.status_code) == (RETRIEVAL, SpanKind.CLIENT, StatusCode.UNSET)
    assert (format_trace_id(span.context.trace_id), format_span_id(span.parent.span_id)) == (TRACE, PARENT)
    assert span.attributes == {
        "gen_ai.operation.name": "retrieval",
        "gen_ai.provider.name": "ragtree",
        "gen_ai.data_source.id": "default",
        "gen_ai.request.top_k": 3,
        "ragtree.documents": 3,
        "ragtree.partial": False,
    }
    assert [event.attributes["ragtree.stage"] for event in span.events] == [1, 2]
    (request,) = traced.stack.retriever.requests
    assert request.traceparent == f"00-{TRACE}-{format_span_id(span.context.span_id)}-01"


async def test_failed_search_ends_its_span(traced: Traced):
    traced.stack.phases.failing["second_stage"] = NoDocuments("It is empty.")
    async with traced.client() as client:
        assert (await client.post("/search", json=ASKED)).status_code == 409
    assert traced.one(RETRIEVAL).attributes["error.type"] == NoDocuments.code
