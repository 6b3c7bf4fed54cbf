"""The span of embedding a query is part of the caller's trace."""

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, format_span_id, format_trace_id
from retriever_cases import TENANT, put, settings

from protocol.errors import Unavailable
from protocol.retrieval import SearchRequest
from retriever.build import build_retriever
from retriever.embedding.hashing import HashingEmbedder
from retriever.settings import HashingSettings

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
REQUEST = SearchRequest(TENANT, "default", "where is the elephant?", 3)


class Away(HashingEmbedder):
    away = False

    def embed_query(self, text):
        if self.away:
            raise Unavailable(f"the endpoint did not embed {text!r}")
        return super().embed_query(text)


@pytest.fixture
async def traced(tmp_path):
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    embedder = Away(HashingSettings())
    retriever = build_retriever(settings(), tmp_path, embedder, tracer=provider.get_tracer("tests"))
    await retriever.start()
    await put(retriever, "a", "elephant")
    yield retriever, embedder, exporter
    await retriever.close()


async def search(retriever, traceparent: str | None) -> None:
    async for _ in retriever.search(msgspec.structs.replace(REQUEST, traceparent=traceparent)):
        pass


async def test_span_is_a_child_of_the_search(traced):
    retriever, _, exporter = traced
    await search(retriever, f"00-{TRACE}-{PARENT}-01")
    (span,) = exporter.get_finished_spans()
    assert span.name == "embeddings hashing"
    assert (format_trace_id(span.context.trace_id), format_span_id(span.parent.span_id)) == (TRACE, PARENT)
    assert span.attributes == {
        "gen_ai.operation.name": "embeddings",
        "gen_ai.provider.name": "ragtree",
        "gen_ai.request.model": "hashing",
        "gen_ai.embeddings.dimension.count": 256,
    }
    assert REQUEST.query not in span.to_json()


async def test_span_of_a_failed_embedding_has_only_the_error_type(traced):
    retriever, embedder, exporter = traced
    embedder.away = True
    with pytest.raises(Unavailable):
        await search(retriever, f"00-{TRACE}-{PARENT}-01")
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "unavailable"
    assert REQUEST.query not in span.to_json()


@pytest.mark.parametrize("traceparent", [None, f"00-{TRACE}-{PARENT}-00"])
async def test_search_without_a_sampled_trace_has_no_span(traced, traceparent: str | None):
    retriever, _, exporter = traced
    await search(retriever, traceparent)
    assert exporter.get_finished_spans() == ()
