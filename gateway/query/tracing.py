"""The spans of a query, after OpenTelemetry's conventions for generative AI.

    invoke_workflow                 the whole query; continues its caller's trace
      ├─ chat                       the rewriting of a follow-up, if one is to be
      ├─ retrieval                  the search, an event for each stage
      │    └─ embeddings            in the retriever's process
      └─ chat                       each generation of an answer, including those on provisional documents

A search without generation has the span ``retrieval`` alone. Without a recording tracer, all calls do nothing. None is
made per token.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

import msgspec
import structlog
from opentelemetry.context import attach, detach
from opentelemetry.trace import NoOpTracer, Span, SpanKind, Tracer, format_span_id, format_trace_id, set_span_in_context

from gateway.query.query import Query
from gateway.tasks import Ends
from gateway.wire.reply import Reply
from protocol.generation import FinishReason, PrefillResult, Sampling
from protocol.plans import PrefillPlan
from protocol.retrieval import CandidateSet, SearchRequest
from protocol.tracing import OPERATION, PROVIDER, REQUEST_MODEL, context_of, end, traceparent_of


class SearchTrace(Ends):
    """Records a search in its own span, which the final stage ends. As a context manager, it ends it in any case.

    ``request`` is the search with the span's context, for the spans of the retriever.
    """

    def __init__(self, span: Span, search: SearchRequest) -> None:
        self._span = span
        traceparent = traceparent_of(span)
        self.request = search if traceparent is None else msgspec.structs.replace(search, traceparent=traceparent)

    def end(self, error: BaseException | None) -> None:
        """End the span, if the final stage has not."""
        end(self._span, error)

    def found(self, found: CandidateSet) -> None:
        """Record a stage."""
        if self._span.is_recording():
            self._span.add_event("stage", {"ragtree.stage": found.stage, "ragtree.documents": len(found.docs)})
            if found.final:
                self._span.set_attribute("ragtree.documents", len(found.docs))
                self._span.set_attribute("ragtree.partial", bool(found.missing_shards))
                if found.reranking is not None:
                    self._span.set_attribute("ragtree.reranking", found.reranking.status)
                end(self._span)


_Attributes = Mapping[str, str | float | bool]

_US = "ragtree"
_CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
_TTFT = "gen_ai.response.time_to_first_chunk"


class ChatTrace:
    """The span of one generation. Its time to the first token is in seconds since its start."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._began = time.monotonic()

    def prefilled(self, prefill: PrefillResult) -> None:
        """Record the first token and the prompt's tokens."""
        if self._span.is_recording():
            self._span.add_event("first_token")
            self._span.set_attribute(_TTFT, time.monotonic() - self._began)
            self._span.set_attribute("gen_ai.usage.input_tokens", prefill.prompt_tokens)
            self._span.set_attribute(_CACHED_TOKENS, prefill.cached_tokens)

    def ended(self, tokens: int, reason: FinishReason | None, error: BaseException | None) -> None:
        """End the span. Without a finish reason or an error, the generation was cancelled."""
        if self._span.is_recording():
            self._span.set_attribute("gen_ai.usage.output_tokens", tokens)
            if reason is not None:
                self._span.set_attribute("gen_ai.response.finish_reasons", (reason,))
            elif error is None:
                self._span.set_attribute("ragtree.cancelled", True)
        end(self._span, error)


class QueryTrace(Ends):
    """The spans of one query. As a context manager, it ends all open spans at the end of its block."""

    def __init__(self, tracer: Tracer, query: Query) -> None:
        self._tracer = tracer
        self._query = query
        self._open: list[Span] = []
        attributes = {"gen_ai.workflow.name": _US, "ragtree.query_id": query.query_id}
        self._root = self._tracer.start_span(
            f"invoke_workflow {_US}", attributes={**self._attributes("invoke_workflow"), **attributes}
        )

    def __enter__(self) -> Self:
        context = self._root.get_span_context()
        if context.is_valid:
            # Applies to the rest of the query's task and to its child tasks.
            structlog.contextvars.bind_contextvars(
                trace_id=format_trace_id(context.trace_id), span_id=format_span_id(context.span_id)
            )
        return self

    def end(self, error: BaseException | None) -> None:
        """End all open spans."""
        for span in (*self._open, self._root):
            end(span, error)

    def retrieval(self, search: SearchRequest) -> SearchTrace:
        """Start the span of a search."""
        return SearchTrace(self._start(f"retrieval {search.collection}", "retrieval", _asked(search)), search)

    def chat(self, plan: PrefillPlan, sampling: Sampling) -> ChatTrace:
        """Start the span of a generation."""
        attributes: _Attributes = {
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "ragtree.generator": plan.instance,
            "ragtree.queue_ms": plan.queued_ms,
            "ragtree.speculative": plan.speculative,
        }
        return ChatTrace(self._start(f"chat {self._query.model}", "chat", attributes))

    def speculated(self, outcome: str) -> None:
        """Record the outcome of a generation on provisional documents."""
        if self._root.is_recording():
            self._root.add_event("speculation", {"ragtree.outcome": outcome})

    def completed(self, reply: Reply) -> None:
        """Record the figures of an answered query."""
        if self._root.is_recording():
            self._root.set_attributes(
                {
                    "gen_ai.usage.input_tokens": reply.usage.prompt_tokens,
                    "gen_ai.usage.output_tokens": reply.usage.completion_tokens,
                    _CACHED_TOKENS: reply.usage.prompt_tokens_details.cached_tokens,
                    "gen_ai.response.finish_reasons": (reply.finish_reason,),
                    _TTFT: reply.timings.ttft_ms / 1000,
                }
            )

    def _start(self, name: str, operation: str, attributes: _Attributes) -> Span:
        span = self._tracer.start_span(
            name,
            set_span_in_context(self._root),
            SpanKind.CLIENT,
            attributes={**self._attributes(operation), **attributes},
        )
        self._open.append(span)
        return span

    def _attributes(self, operation: str) -> dict[str, str]:
        return {OPERATION: operation, PROVIDER: _US, REQUEST_MODEL: self._query.model}


class Tracing:
    """Makes the spans of queries and searches with ``tracer``. ``close`` sends the remaining spans."""

    def __init__(self, tracer: Tracer | None = None, close: Callable[[], None] = lambda: None) -> None:
        self._tracer = tracer or NoOpTracer()
        self.close = close

    def query(self, query: Query) -> QueryTrace:
        """Start the span of a query, in the trace of the current context."""
        return QueryTrace(self._tracer, query)

    def search(self, search: SearchRequest) -> SearchTrace:
        """Start the span of a search without generation, in the trace of the current context."""
        attributes = {OPERATION: "retrieval", PROVIDER: _US, **_asked(search)}
        span = self._tracer.start_span(f"retrieval {search.collection}", None, SpanKind.CLIENT, attributes)
        return SearchTrace(span, search)


def _asked(search: SearchRequest) -> Mapping[str, str | int]:
    return {"gen_ai.data_source.id": search.collection, "gen_ai.request.top_k": search.top_k}


@contextmanager
def continued(traceparent: str | None) -> Iterator[None]:
    """Start the spans of the block within the caller's trace, if it sent one."""
    if traceparent is None:
        yield
        return
    token = attach(context_of(traceparent))
    try:
        yield
    finally:
        detach(token)
