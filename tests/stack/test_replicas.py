"""Two slow instances on real Ray Serve: loss, retry, draining, clients that leave, a trace through all processes.

The fake engine prefills so slowly that a test sees which query it works on. Each instance runs one query at a time. A
second machine joins, without an engine. The order matters: after draining there is one instance, and the last test
stops the stack.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from instances import redeploy, replicas, running_on, terminal
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from second_machine import SecondMachine, of_several_machines
from stacks import FAKE, FREEDONIA, come_to, command, until

pytestmark = pytest.mark.ray

PREFILL_TOKENS_PER_S = 100
SLOW = {
    **FAKE,
    "RAGTREE_GENERATOR__FAKE__DECODE_TOKENS_PER_S": "20",
    "RAGTREE_GENERATOR__FAKE__PREFILL_TOKENS_PER_S": str(PREFILL_TOKENS_PER_S),
    "RAGTREE_SERVING__GENERATOR__MIN_REPLICAS": "2",
    "RAGTREE_CLUSTER__ENGINES": "2",
    "RAGTREE_CONTROLLER__MAX_RUNNING": "1",
    # Send nothing before the end: spans that arrive were flushed by stopping processes.
    "OTEL_BSP_SCHEDULE_DELAY": "600000",
}
HILLS = "Ruritania has hills, and castles, and one railway."
# A second of prefill, and a few seconds of answer.
LONG = {"query": "What has Ruritania?", "collection": "long", "top_k": 1, "max_tokens": 60}
# Six seconds of prefill: a query that comes seconds after another still runs beside it, and finds nothing cached.
SLOW_PREFILL = {**LONG, "collection": "slow", "top_k": 3, "max_tokens": 4}
# Half a minute of prefill.
SLOWEST = {"query": "What has Ruritania?", "collection": "slowest", "top_k": 12}
QUESTION = {"query": "What is the capital of Freedonia?", "collection": "countries", "top_k": 2}
DOCUMENTS = {
    "long": {"ruritania": " ".join([HILLS] * 12)},
    "slow": {f"ruritania-{n}": " ".join([f"{n}: {HILLS}"] * 20) for n in range(SLOW_PREFILL["top_k"])},
    "slowest": {f"part{n}": f"Part {n}. " + "castle lake valley forest " * 80 for n in range(SLOWEST["top_k"])},
    "countries": {"freedonia": FREEDONIA},
}
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
def slow(start_stack, received, tmp_path_factory):
    several = of_several_machines(tmp_path_factory.mktemp("key"))
    stack = start_stack({**SLOW, **several, "RAGTREE_OBSERVABILITY__OTLP_ENDPOINT": received[1]}, "slow")
    for collection, documents in DOCUMENTS.items():
        stack.ingest(collection, documents)
    until(lambda: len(running_on(stack)) == 2)
    return stack


@pytest.fixture(scope="module")
def one_slow(slow):
    """The same stack with one instance."""
    if len(running_on(slow)) > 1:
        redeploy(slow, RAGTREE_SERVING__GENERATOR__MIN_REPLICAS="1")
        until(lambda: len(running_on(slow)) == len(replicas(slow)) == 1)
    return slow


def test_a_machine_joins_and_leaves_nothing_behind_when_it_goes(slow, tmp_path):
    second = SecondMachine(tmp_path / "data", slow.environment)
    try:
        second.join(slow.running.ray_address, engines=0)
        until(lambda: second.joined(1))
        second.leave()
    finally:
        second.kill()


def test_a_machine_with_another_token_or_key_is_refused(slow, tmp_path):
    (tmp_path / "key").write_text("a secret of someone else")
    for variable, value, told in (
        ("RAY_AUTH_TOKEN", "0" * 64, "refuses this machine's token"),
        ("RAGTREE_GENERATOR__KV__PEERS__KEY_FILE", str(tmp_path / "key"), "another secret"),
    ):
        own = {**slow.environment, "RAGTREE_DATA_DIR": str(tmp_path / "data"), variable: value}
        ran = command("join", slow.running.ray_address, **own)
        assert ran.returncode == 1
        assert told in ran.stderr
        assert "Traceback" not in ran.stderr


def test_a_query_that_loses_its_instance_before_a_token_is_answered_by_another(slow):
    before = slow.metric("ragtree_requests_begun_again_total")
    with ThreadPoolExecutor(2) as asking:
        answers = [asking.submit(slow.query, **SLOW_PREFILL) for _ in range(2)]
        # One query on each instance. Neither has a token for seconds.
        until(lambda: list(running_on(slow).values()) == [1, 1])
        replicas(slow)[0].kill()
        replies = [answer.result() for answer in answers]
    assert [reply.status_code for reply in replies] == [200, 200], replies
    assert replies[0].json()["output_text"] == replies[1].json()["output_text"]
    assert slow.metric("ragtree_requests_begun_again_total") == before + 1
    until(lambda: len(running_on(slow)) == 2)


def test_started_query_fails_with_its_instance_and_others_continue(slow):
    with ExitStack() as streams:
        running = [streams.enter_context(slow.asking(**LONG)) for _ in range(2)]
        for events in running:
            come_to(events, "output_text.delta")
        replicas(slow)[0].kill()
        # While one instance is down, the other takes all queries.
        assert slow.query(**{**LONG, "max_tokens": 1}).status_code == 200
        ends = sorted(terminal(events)["type"] for events in running)
    assert ends == ["query.completed", "query.failed"]
    until(lambda: len(running_on(slow)) == 2)


def test_draining_instance_finishes_its_streams_and_gets_no_new_ones(slow):
    with ExitStack() as streams:
        running = [streams.enter_context(slow.asking(**LONG)) for _ in range(2)]
        for events in running:
            come_to(events, "output_text.delta")
        redeploy(slow, RAGTREE_SERVING__GENERATOR__MIN_REPLICAS="1")
        until(lambda: len(running_on(slow)) == 1)
        assert slow.query(**{**LONG, "max_tokens": 1}).status_code == 200
        assert [terminal(events)["type"] for events in running] == ["query.completed"] * 2
    until(lambda: len(replicas(slow)) == 1)


def admitted(stack):
    return stack.metric("ragtree_queue_wait_seconds_count")


def ended(stack):
    return stack.metric("ragtree_request_duration_seconds_count")


def wait_for_prefill(stack, events, admitted_before):
    """Return when the engine prefills the query."""
    assert len(come_to(events, "retrieval.completed")["results"]) == SLOWEST["top_k"]
    # The gateway counts an admission right before it calls the engine.
    until(lambda: admitted(stack) == admitted_before + 1)


def assert_prefilled_at_once(events, free_since):
    """Check that only the query's own prefill lies between ``free_since`` and its first token."""
    own_s = come_to(events, "cache.resolved")["prompt_tokens"] / PREFILL_TOKENS_PER_S
    assert 0.9 * own_s < time.monotonic() - free_since < own_s + 5


def test_a_client_that_leaves_during_prefill_frees_the_engine(one_slow):
    before = admitted(one_slow)
    with one_slow.asking(**SLOWEST) as leaving:
        wait_for_prefill(one_slow, leaving, before)
    left = time.monotonic()
    with one_slow.asking(**QUESTION) as next_one:
        assert_prefilled_at_once(next_one, left)


def test_a_client_that_leaves_the_queue_is_skipped(one_slow):
    before = admitted(one_slow)
    with ExitStack() as until_the_end:
        with one_slow.asking(**SLOWEST) as running:
            wait_for_prefill(one_slow, running, before)
            with one_slow.asking(**SLOWEST) as leaving:
                come_to(leaving, "retrieval.completed")
                next_one = until_the_end.enter_context(one_slow.asking(**QUESTION))
                come_to(next_one, "retrieval.completed")
                assert admitted(one_slow) == before + 1
                ended_before = ended(one_slow)
            # The second query must leave the queue before its turn.
            until(lambda: ended(one_slow) == ended_before + 1, timeout_s=10)
        assert_prefilled_at_once(next_one, time.monotonic())


def test_one_trace_goes_through_all_processes_and_is_sent_before_they_end(one_slow, received):
    stack, requests = one_slow, received[0]
    with stack.client() as client:
        headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "X-Request-Id": "mine"}
        # A question that was asked before would not be embedded again.
        asked = {**QUESTION, "query": "And what is the capital of Sylvania?"}
        answer = client.post("/query", json=asked, headers=headers)
        assert answer.status_code == 200
        metrics = client.get("/metrics").text
    documents = sum(map(len, DOCUMENTS.values()))
    assert f'ragtree_ingest_documents_total{{status="stored"}} {documents}.0' in metrics
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
    assert not any(asked["query"].encode() in request.SerializeToString() for request in requests)
