"""Exports a process's spans to an OpenTelemetry collector."""

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

_FLUSH_S = 3.0
"""How long the end of a process waits for its last spans to be sent."""


class Spans:
    """Exports the spans of one process in batches, from its own thread, over OTLP.

    Exporting never blocks the caller. Spans that cannot be sent are dropped. The log reports it once when sending fails
    and once when it works again.
    """

    def __init__(self, provider: TracerProvider | None) -> None:
        self._provider = provider
        self.tracer: Tracer = NoOpTracer() if provider is None else provider.get_tracer("ragtree", version("ragtree"))

    def close(self) -> None:
        """Send the remaining spans, for a few seconds at most."""
        if self._provider is not None:
            # The provider's own timeouts add up to half a minute.
            closing = threading.Thread(target=self._provider.shutdown, daemon=True)
            closing.start()
            closing.join(_FLUSH_S)


def open_spans(settings: ObservabilitySettings, part: str) -> Spans:
    """Return the exporter of this process's spans, labelled with ``part``; one that does nothing if tracing is off."""
    return Spans(_provider(settings, part) if settings.traced else None)


def _provider(settings: ObservabilitySettings, part: str) -> TracerProvider:
    # Imported here: it is slow to import, and not needed without tracing.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    # The exporter would log every failed batch, and not as JSON.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    base = settings.otlp_endpoint
    exporter = OTLPSpanExporter(None if base is None else f"{str(base).rstrip('/')}/v1/traces")
    ours = Resource.create({"service.name": "ragtree", "service.version": version("ragtree"), "ragtree.part": part})
    # Attributes from the user's environment win.
    provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_FailureLog(exporter)))
    return provider


class _FailureLog(SpanExporter):
    """An exporter that logs when sending starts to fail and when it works again."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        failing = result is not SpanExportResult.SUCCESS
        if failing and not self._failing:
            log.warning(
                "spans_not_sent", consequence="spans are dropped until the collector answers; queries are not affected"
            )
        elif self._failing and not failing:
            log.info("spans_sent_again")
        self._failing = failing
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)
