"""How spans are named and how a trace crosses from one process into the next, for every part that records any.

The names are those of OpenTelemetry's conventions for generative AI. No text of a question, a document or an answer
stands in a span, and no message of an error, which may quote one.
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
    """The span as W3C's ``traceparent``, for what is called on its behalf; None where nobody traces."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, set_span_in_context(span))
    return carrier.get(_FIELD)


def context_of(traceparent: str | None) -> Context:
    """The context that a ``traceparent`` names; an empty one for None and for what is none."""
    return _propagator.extract({} if traceparent is None else {_FIELD: traceparent}, Context())


def end(span: Span, error: BaseException | None = None) -> None:
    """End a span once; an error is recorded by its code alone, and a cancellation is not an error."""
    if not span.is_recording():
        return
    if isinstance(error, Exception):
        span.set_attribute("error.type", error.code if isinstance(error, RagtreeError) else type(error).__qualname__)
        span.set_status(Status(StatusCode.ERROR))
    elif error is not None:
        span.set_attribute("ragtree.cancelled", True)
    span.end()
