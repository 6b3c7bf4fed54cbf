"""Spans sent by a process, to a real receiver of OTLP over HTTP and to none."""

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pydantic import ValidationError
from structlog.testing import capture_logs

from services.observability.settings import ObservabilitySettings
from services.observability.spans import open_spans


class Receiver:
    """A collector that keeps its requests, or answers with ``status``."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, ExportTraceServiceRequest]] = []
        self.status = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if receiver.status == 200:
                    receiver.requests.append((self.path, ExportTraceServiceRequest.FromString(body)))
                self.send_response(receiver.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def spans(self) -> list:
        return [
            (resource.resource, span)
            for _, request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)


def attributes(resource) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in resource.attributes}


def test_tracing_is_off_by_default():
    spans = open_spans(ObservabilitySettings(), "gateway")
    assert not spans.tracer.start_span("x").is_recording()
    assert "OtelBatchSpanRecordProcessor" not in {thread.name for thread in threading.enumerate()}
    spans.close()


@pytest.mark.parametrize("how", ["setting", "environment"])
def test_spans_reach_the_collector_when_the_process_ends(receiver: Receiver, monkeypatch, how: str):
    settings = ObservabilitySettings(otlp_endpoint=f"{receiver.url}/" if how == "setting" else None)
    if how == "environment":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    spans = open_spans(settings, "retriever")
    with spans.tracer.start_as_current_span("embeddings", attributes={"gen_ai.operation.name": "embeddings"}):
        pass
    spans.close()
    assert {path for path, _ in receiver.requests} == {"/v1/traces"}
    ((resource, span),) = receiver.spans()
    assert span.name == "embeddings"
    assert attributes(span) == {"gen_ai.operation.name": "embeddings"}
    named = attributes(resource)
    assert (named["service.name"], named["ragtree.part"]) == ("ragtree", "retriever")
    assert named["service.version"]


def test_invalid_endpoint_is_refused():
    with pytest.raises(ValidationError, match="otlp_endpoint"):
        ObservabilitySettings(otlp_endpoint="collector:4318")


def test_service_name_from_the_environment_wins(receiver: Receiver, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "answers")
    spans = open_spans(ObservabilitySettings(otlp_endpoint=receiver.url), "gateway")
    spans.tracer.start_span("x").end()
    spans.close()
    ((resource, _),) = receiver.spans()
    assert attributes(resource)["service.name"] == "answers"


@pytest.mark.parametrize(("name", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")])
def test_standard_variables_turn_tracing_off(receiver: Receiver, monkeypatch, name: str, value: str):
    monkeypatch.setenv(name, value)
    spans = open_spans(ObservabilitySettings(otlp_endpoint=receiver.url), "gateway")
    assert not spans.tracer.start_span("x").is_recording()


def test_missing_collector_delays_nothing_and_is_logged_once(monkeypatch, caplog):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        # Bound but not listening: connections are refused.
        spans = open_spans(ObservabilitySettings(otlp_endpoint=f"http://127.0.0.1:{taken.getsockname()[1]}"), "gateway")
        with capture_logs() as logs:
            began = time.monotonic()
            for _ in range(5000):
                spans.tracer.start_span("x").end()
            assert time.monotonic() - began < 5, "more spans than the queue holds, and no call waits"
            until(lambda: logs)
            spans.close()
            assert time.monotonic() - began < 20
    assert [line["event"] for line in logs] == ["spans_not_sent"]
    assert [record for record in caplog.records if record.name.startswith("opentelemetry.exporter")] == []


def test_returning_collector_is_logged(receiver: Receiver, monkeypatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    receiver.status = 400
    with capture_logs() as logs:
        spans = open_spans(ObservabilitySettings(otlp_endpoint=receiver.url), "gateway")
        spans.tracer.start_span("lost").end()
        until(lambda: logs)
        receiver.status = 200
        spans.tracer.start_span("sent").end()
        until(lambda: len(logs) == 2)
        spans.close()
    assert [line["event"] for line in logs] == ["spans_not_sent", "spans_sent_again"]
    assert [span.name for _, span in receiver.spans()] == ["sent"]


def until(condition) -> None:
    give_up = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.01)
