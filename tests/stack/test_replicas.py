"""Several generator instances on real Ray Serve, with the fake engine: loss, retry, draining and scaling."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psutil
import pytest
from stacks import FAKE, PATIENCE_S, come_to, until

pytestmark = pytest.mark.ray

PREFILL_TOKENS_PER_S = 100
SLOW = {
    **FAKE,
    "RAGTREE_GENERATOR__FAKE__DECODE_TOKENS_PER_S": "20",
    "RAGTREE_GENERATOR__FAKE__PREFILL_TOKENS_PER_S": str(PREFILL_TOKENS_PER_S),
    "RAGTREE_SERVING__GENERATOR__MIN_REPLICAS": "2",
    # Ray Serve's own setting. By default it would notice load only every ten seconds.
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
}
TERMINAL = {"query.completed", "query.incomplete", "query.failed"}
# A second of prefill, and a few seconds of answer.
LONG = {"query": "What has Ruritania?", "collection": "long", "top_k": 1, "max_tokens": 60}
# Six seconds of prefill: a query that comes seconds after another still runs beside it, and finds nothing cached.
SLOW_PREFILL = {**LONG, "collection": "slow", "top_k": 3, "max_tokens": 4}
# One instance, and another under load.
SCALING = {
    "RAGTREE_GENERATOR__FAKE__PREFILL_TOKENS_PER_S": "20000",
    "RAGTREE_GENERATOR__FAKE__DECODE_TOKENS_PER_S": "3",
    "RAGTREE_SERVING__GENERATOR__MIN_REPLICAS": "1",
    "RAGTREE_SERVING__GENERATOR__MAX_REPLICAS": "2",
    # Another instance is added if more than half as many run.
    "RAGTREE_CONTROLLER__MAX_RUNNING": "2",
    "RAGTREE_SERVING__GENERATOR__UPSCALE_DELAY_S": "0",
    "RAGTREE_SERVING__GENERATOR__DOWNSCALE_DELAY_S": "1",
}
STREAMS = 4
# Half a minute of answer: Serve averages the load over ten seconds, and a replica has to start.
LONGER = {**LONG, "max_tokens": 90}

REDEPLOY = """
import sys
import ray
from ray import serve
from services.serve import applications
from services.serve.applications import GENERATOR, generator_application
from services.config import load_config

# So that the load counts sooner. Ray Serve counts it every ten seconds.
applications.LOOK_BACK_S = 10.5

ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
serve.run(generator_application(load_config()), name=GENERATOR, route_prefix=None)
"""


@pytest.fixture(scope="module")
def two_instances(start_stack):
    stack = start_stack(SLOW, "replicas")
    hills = "Ruritania has hills, and castles, and one railway."
    stack.ingest("long", {"ruritania": " ".join([hills] * 12)})
    stack.ingest("slow", {f"ruritania-{n}": " ".join([f"{n}: {hills}"] * 20) for n in range(SLOW_PREFILL["top_k"])})
    until(lambda: instances(stack) == 2)
    return stack


@pytest.fixture
def scaling(two_instances):
    """The same stack, with its generator deployed again: one instance, which autoscales."""
    before = running_on(two_instances).keys()
    redeploy(two_instances, **SCALING)
    until(lambda: instances(two_instances) == 1 and not running_on(two_instances).keys() & before)
    return two_instances


def instances(stack) -> int:
    """Return how many instances get requests from the controller."""
    return len(running_on(stack))


def running_on(stack) -> dict[str, int]:
    """Return the number of running requests of each of these instances."""
    with stack.client() as client:
        answer = client.get("/v1/admin/cache/stats")
    # The controller does not answer while it starts.
    loads = answer.json()["instances"] if answer.status_code == 200 else []
    return {load["instance"]: load["running"] for load in loads if not load["retired"]}


def replicas(stack) -> list[psutil.Process]:
    return stack.processes("ServeReplica:generator")


def terminal(events) -> dict:
    """Read a stream up to its terminal event."""
    *_, last = events
    return last


def test_a_query_that_loses_its_instance_before_a_token_is_answered_by_another(two_instances):
    before = two_instances.metric("ragtree_requests_begun_again_total")
    with ThreadPoolExecutor(2) as asking:
        answers = [asking.submit(two_instances.query, **SLOW_PREFILL) for _ in range(2)]
        # One query on each instance. Neither has a token for seconds.
        until(lambda: list(running_on(two_instances).values()) == [1, 1])
        lost = replicas(two_instances)[0]
        lost.kill()
        replies = [answer.result() for answer in answers]
    assert [reply.status_code for reply in replies] == [200, 200], replies
    assert replies[0].json()["output_text"] == replies[1].json()["output_text"]
    assert two_instances.metric("ragtree_requests_begun_again_total") == before + 1
    until(lambda: instances(two_instances) == 2)


def test_started_query_fails_with_its_instance_and_others_continue(two_instances):
    with ExitStack() as streams:
        running = [streams.enter_context(two_instances.asking(**LONG)) for _ in range(2)]
        for events in running:
            come_to(events, "output_text.delta")
        replicas(two_instances)[0].kill()
        # While one instance is down, the other takes all queries.
        assert two_instances.query(**{**LONG, "max_tokens": 1}).status_code == 200
        ends = sorted(terminal(events)["type"] for events in running)
    assert ends == ["query.completed", "query.failed"]
    until(lambda: instances(two_instances) == 2)


def test_draining_instance_finishes_its_streams_and_gets_no_new_ones(two_instances):
    with ExitStack() as streams:
        running = [streams.enter_context(two_instances.asking(**LONG)) for _ in range(2)]
        for events in running:
            come_to(events, "output_text.delta")
        redeploy(two_instances, RAGTREE_SERVING__GENERATOR__MIN_REPLICAS="1")
        until(lambda: instances(two_instances) == 1)
        assert two_instances.query(**{**LONG, "max_tokens": 1}).status_code == 200
        assert [terminal(events)["type"] for events in running] == ["query.completed"] * 2
    until(lambda: len(replicas(two_instances)) == 1)
    redeploy(two_instances)
    until(lambda: instances(two_instances) == 2)


def test_instances_scale_with_the_load(scaling):
    (first,) = running_on(scaling)
    with ThreadPoolExecutor(STREAMS) as asking:
        streams = [asking.submit(scaling.events, **LONGER) for _ in range(STREAMS)]
        until(lambda: running_on(scaling) == {first: STREAMS})
        until(lambda: instances(scaling) == 2)
        # Running streams stay where they are, and the new instance takes the next query.
        with scaling.asking(**{**LONG, "max_tokens": 6}) as events:
            come_to(events, "output_text.delta")
            busy = running_on(scaling)
            assert terminal(events)["type"] == "query.completed"
        ends = [[event["type"] for event in stream.result() if event["type"] in TERMINAL] for stream in streams]
    assert busy.pop(first) == STREAMS
    assert list(busy.values()) == [1]
    assert ends == [["query.completed"]] * STREAMS
    until(lambda: instances(scaling) == 1)
    # While one drains, and again when it is gone.
    assert scaling.query(**{**LONG, "max_tokens": 1}).status_code == 200
    until(lambda: len(replicas(scaling)) == 1)
    assert scaling.query(**{**LONG, "max_tokens": 1}).status_code == 200


def redeploy(stack, **changed: str) -> None:
    """Deploy the generator again, with changes to the stack's environment."""
    environment = {**stack.environment, "RAGTREE_DATA_DIR": str(stack.folder), **changed}
    ran = subprocess.run(
        [sys.executable, "-c", REDEPLOY, stack.running.ray_address],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
