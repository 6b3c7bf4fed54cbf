"""Where the spans of a process go."""

import logging
import threading
from collections.abc import Sequence
from importlib.metadata import version

import structlog
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import NoOpTracer, Tracer

from services.observability.settings import ObservabilitySettings

log = structlog.get_logger(__name__)

_LAST_SPANS_S = 3.0
"""How long the end of a process waits for its last spans."""


class Spans:
    """Where the spans of one process go: in batches, from a thread of its own, to an OTLP collector.

    Nobody waits for it. What cannot be sent is dropped; the log says so once, and once when it goes again.
    """

    def __init__(self, provider: TracerProvider | None) -> None:
        self._provider = provider
        self.tracer: Tracer = NoOpTracer() if provider is None else provider.get_tracer("ragtree", version("ragtree"))

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        if self._provider is not None:
            # Its own timeouts come to half a minute.
            closing = threading.Thread(target=self._provider.shutdown, daemon=True)
            closing.start()
            closing.join(_LAST_SPANS_S)


def open_spans(settings: ObservabilitySettings, part: str) -> Spans:
    """The spans of this process, which say that they are of ``part``; none where they are not wanted."""
    return Spans(_provider(settings, part) if settings.traced else None)


def _provider(settings: ObservabilitySettings, part: str) -> TracerProvider:
    # Here, for it takes a while to import, and is not needed where nobody traces.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    # They would report each batch anew, and not as JSON.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    base = settings.otlp_endpoint
    exporter = OTLPSpanExporter(None if base is None else f"{str(base).rstrip('/')}/v1/traces")
    ours = Resource.create({"service.name": "ragtree", "service.version": version("ragtree"), "ragtree.part": part})
    # What the user's environment says of this process wins.
    provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_Reporting(exporter)))
    return provider


class _Reporting(SpanExporter):
    """An exporter whose failures are logged when they begin and when they end."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        failing = result is not SpanExportResult.SUCCESS
        if failing and not self._failing:
            log.warning("spans_not_sent", consequence="spans are dropped until the collector answers; queries go on")
        elif self._failing and not failing:
            log.info("spans_sent_again")
        self._failing = failing
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)
