"""Span names, and how a trace crosses process borders.

The names follow OpenTelemetry's conventions for generative AI. Spans never contain the text of a question, a document
or an answer, nor an error message, which may quote one.
"""

from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from protocol.errors import RagtreeError

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"

_FIELD = "traceparent"
_propagator = TraceContextTextMapPropagator()


def traceparent_of(span: Span) -> str | None:
    """Return the span as W3C's ``traceparent``, for calls to other processes; None without tracing."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, set_span_in_context(span))
    return carrier.get(_FIELD)


def context_of(traceparent: str | None) -> Context:
    """Return the context that a ``traceparent`` names; an empty one for None or an invalid value."""
    return _propagator.extract({} if traceparent is None else {_FIELD: traceparent}, Context())


def end(span: Span, error: BaseException | None = None) -> None:
    """End a span once. An error is recorded by its code alone; a cancellation is not an error."""
    if not span.is_recording():
        return
    if isinstance(error, Exception):
        span.set_attribute("error.type", error.code if isinstance(error, RagtreeError) else type(error).__qualname__)
        span.set_status(Status(StatusCode.ERROR))
    elif error is not None:
        span.set_attribute("ragtree.cancelled", True)
    span.end()
