"""A query's trace through the processes of a real stack (fake engine), to a real receiver of OTLP over HTTP."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from stacks import FAKE, FREEDONIA, HASHING

pytestmark = pytest.mark.ray

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
QUESTION = "What is the capital of Freedonia?"


@pytest.fixture
def received():
    """What was sent to the receiver, whose address is its ``url``."""
    requests: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield requests, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_one_trace_goes_through_all_processes_and_is_sent_before_they_end(start_stack, received):
    requests, url = received
    # Nothing is sent before the end: what arrives was flushed by the processes as they stopped.
    late = {"OTEL_BSP_SCHEDULE_DELAY": "600000"}
    stack = start_stack({**FAKE, **HASHING, **late, "RAGTREE_OBSERVABILITY__OTLP_ENDPOINT": url}, "traced")
    stack.ingest("countries", {"freedonia": FREEDONIA})
    with stack.client() as client:
        headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "X-Request-Id": "mine"}
        answer = client.post("/query", json={"query": QUESTION, "collection": "countries"}, headers=headers)
        assert answer.status_code == 200
        metrics = client.get("/metrics").text
    assert 'ragtree_ingest_documents_total{status="stored"} 1.0' in metrics
    assert 'ragtree_part_ready{part="engine"} 1.0' in metrics
    assert stack.stop()
    found = [
        (span, {pair.key: pair.value.string_value for pair in resource.resource.attributes}["ragtree.part"])
        for request in requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
        if span.trace_id.hex() == TRACE
    ]
    names = {span.span_id: span.name for span, _ in found}
    assert {(span.name, names.get(span.parent_span_id), part) for span, part in found} == {
        ("invoke_workflow ragtree", None, "gateway"),
        ("retrieval countries", "invoke_workflow ragtree", "gateway"),
        ("embeddings hashing", "retrieval countries", "retriever"),
        ("chat fake", "invoke_workflow ragtree", "gateway"),
    }
    assert not any(QUESTION.encode() in request.SerializeToString() for request in requests)
