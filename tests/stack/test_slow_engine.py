"""A stack with a slow engine: clients that leave before the first token, and one trace through all processes.

The fake engine prefills so slowly that a test sees which query it works on. The last test stops the stack.
"""

import threading
import time
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from stacks import FAKE, FREEDONIA, come_to, until

pytestmark = pytest.mark.ray

QUESTION = {"query": "What is the capital of Freedonia?", "collection": "countries", "top_k": 2}
SLOW_PREFILL_TOKENS_PER_S = 50
LONG = {"query": "What has Ruritania?", "collection": "long", "top_k": 12}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture(scope="module")
def received():
    """A receiver of OTLP over HTTP: its requests and its URL."""
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


@pytest.fixture(scope="module")
def slow_prefill(start_stack, received):
    """A traced stack that runs one query at a time; the prompt of ``LONG`` takes it more than a minute."""
    environment = {
        **FAKE,
        "RAGTREE_GENERATOR__FAKE__PREFILL_TOKENS_PER_S": str(SLOW_PREFILL_TOKENS_PER_S),
        "RAGTREE_CONTROLLER__MAX_RUNNING": "1",
        "RAGTREE_OBSERVABILITY__OTLP_ENDPOINT": received[1],
        # Send nothing before the end: spans that arrive were flushed by stopping processes.
        "OTEL_BSP_SCHEDULE_DELAY": "600000",
    }
    stack = start_stack(environment, "slow-prefill")
    stack.ingest("long", {f"part{n}": f"Part {n}. " + "castle lake valley forest " * 80 for n in range(LONG["top_k"])})
    stack.ingest("countries", {"freedonia": FREEDONIA})
    return stack


def admitted(stack):
    return stack.metric("ragtree_queue_wait_seconds_count")


def ended(stack):
    return stack.metric("ragtree_request_duration_seconds_count")


def wait_for_prefill(stack, events, admitted_before):
    """Return when the engine prefills the query."""
    assert len(come_to(events, "retrieval.completed")["results"]) == LONG["top_k"]
    # The gateway counts an admission right before it calls the engine.
    until(lambda: admitted(stack) == admitted_before + 1)


def assert_prefilled_at_once(events, free_since):
    """Check that only the query's own prefill lies between ``free_since`` and its first token."""
    own_s = come_to(events, "cache.resolved")["prompt_tokens"] / SLOW_PREFILL_TOKENS_PER_S
    assert 0.9 * own_s < time.monotonic() - free_since < own_s + 5


def test_a_client_that_leaves_during_prefill_frees_the_engine(slow_prefill):
    before = admitted(slow_prefill)
    with slow_prefill.asking(**LONG) as leaving:
        wait_for_prefill(slow_prefill, leaving, before)
    left = time.monotonic()
    with slow_prefill.asking(**QUESTION) as next_one:
        assert_prefilled_at_once(next_one, left)


def test_a_client_that_leaves_the_queue_is_skipped(slow_prefill):
    before = admitted(slow_prefill)
    with ExitStack() as until_the_end:
        with slow_prefill.asking(**LONG) as running:
            wait_for_prefill(slow_prefill, running, before)
            with slow_prefill.asking(**LONG) as leaving:
                come_to(leaving, "retrieval.completed")
                next_one = until_the_end.enter_context(slow_prefill.asking(**QUESTION))
                come_to(next_one, "retrieval.completed")
                assert admitted(slow_prefill) == before + 1
                ended_before = ended(slow_prefill)
            # The second query must leave the queue before its turn.
            until(lambda: ended(slow_prefill) == ended_before + 1, timeout_s=10)
        assert_prefilled_at_once(next_one, time.monotonic())


def test_one_trace_goes_through_all_processes_and_is_sent_before_they_end(slow_prefill, received):
    stack, requests = slow_prefill, received[0]
    with stack.client() as client:
        headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "X-Request-Id": "mine"}
        answer = client.post("/query", json=QUESTION, headers=headers)
        assert answer.status_code == 200
        metrics = client.get("/metrics").text
    assert f'ragtree_ingest_documents_total{{status="stored"}} {LONG["top_k"] + 1}.0' in metrics
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
    assert not any(QUESTION["query"].encode() in request.SerializeToString() for request in requests)
