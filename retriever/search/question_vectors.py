"""The vectors of a search's question, and the span of embedding it, which is the retriever's only one."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from opentelemetry.trace import SpanKind, Tracer

from protocol.retrieval import SearchRequest
from protocol.tracing import OPERATION, PROVIDER, REQUEST_MODEL, context_of, end
from retriever.embedding.base import Embedder, Vector, unit_rows


class QuestionVectors:
    """Embeds what one search asks for, each text once, when it is first wanted. Raises what the embedder raises."""

    def __init__(self, request: SearchRequest, embedder: Embedder, tracer: Tracer) -> None:
        self._request = request
        self._embedder = embedder
        self._tracer = tracer
        self._known: dict[str, Vector] = {}

    def searched(self) -> Vector:
        """The query's vector, [dimension]. With a context, the mean of those with and without it.

        So a follow-up finds what the conversation is about, and a change of subject what is new
        (docs/retrieval.md has figures).
        """
        request = self._request
        if not request.context:
            return self.in_context()
        vectors = self._of(request.query, request.in_context)
        return unit_rows(np.stack(vectors).mean(0, keepdims=True)).reshape(-1)

    def in_context(self) -> Vector:
        """The vector of the query after its context, [dimension]."""
        return self._of(self._request.in_context)[0]

    def _of(self, *texts: str) -> list[Vector]:
        new = [text for text in texts if text not in self._known]
        if new:
            with embedding_span(self._tracer, self._embedder, self._request.traceparent):
                self._known |= {text: self._embedder.embed_query(text) for text in new}
        return [self._known[text] for text in texts]


@contextmanager
def embedding_span(tracer: Tracer, embedder: Embedder, traceparent: str | None) -> Iterator[None]:
    """Trace the block as an embedding, as part of the caller's trace. Does nothing without a ``traceparent``."""
    if traceparent is None:
        yield
        return
    attributes: dict[str, str | int] = {
        OPERATION: "embeddings",
        PROVIDER: "ragtree",
        REQUEST_MODEL: embedder.name,
        "gen_ai.embeddings.dimension.count": embedder.dimension,
    }
    span = tracer.start_span(
        f"embeddings {embedder.name}", context_of(traceparent), SpanKind.CLIENT, attributes=attributes
    )
    try:
        yield
    except BaseException as error:
        end(span, error)
        raise
    end(span)
