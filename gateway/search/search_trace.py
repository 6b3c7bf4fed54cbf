"""The span of a search: ``retrieval``, with an event for each stage."""

from collections.abc import Mapping
from types import TracebackType

import msgspec
from opentelemetry.trace import Span

from protocol.retrieval import CandidateSet, SearchRequest
from protocol.tracing import end, traceparent_of


def span_name(search: SearchRequest) -> str:
    """The name of a search's span."""
    return f"retrieval {search.collection}"


def span_attributes(search: SearchRequest) -> Mapping[str, str | int]:
    """What is known of a search when its span starts."""
    return {"gen_ai.data_source.id": search.collection, "gen_ai.request.top_k": search.top_k}


class SearchTrace:
    """Records a search in its own span, which the final stage ends. As a context manager, it ends it in any case.

    ``request`` is the search with the span's context, for the spans of the retriever.
    """

    def __init__(self, span: Span, search: SearchRequest) -> None:
        self._span = span
        traceparent = traceparent_of(span)
        self.request = search if traceparent is None else msgspec.structs.replace(search, traceparent=traceparent)

    def __enter__(self) -> "SearchTrace":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
