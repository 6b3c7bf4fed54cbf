"""The retriever's span: the embedding of a question."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import SpanKind, Tracer

from protocol.tracing import OPERATION, PROVIDER, REQUEST_MODEL, context_of, end
from retriever.embedding.base import Embedder


@contextmanager
def embeddings(tracer: Tracer, embedder: Embedder, traceparent: str | None) -> Iterator[None]:
    """The span of a block that embeds, in the trace of whoever searches; none where nobody traces."""
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
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        end(span, error)
