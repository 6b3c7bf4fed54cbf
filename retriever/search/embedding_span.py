"""The retriever's only span: embedding the query."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import SpanKind, Tracer

from protocol.tracing import OPERATION, PROVIDER, REQUEST_MODEL, context_of, end
from retriever.embedding.base import Embedder


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
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        end(span, error)
