"""Instances of the fake engine that scale with their load, on real Ray Serve."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from instances import NOTICES_LOAD, redeploy, replicas, running_on, terminal
from stacks import FAKE, come_to, until

pytestmark = [pytest.mark.ray, pytest.mark.prove("services/serve/", "cachectl/scheduling/", "gateway/query/")]

# One instance, and another under load.
SCALING = {
    **FAKE,
    **NOTICES_LOAD,
    "RAGTREE_GENERATOR__FAKE__DECODE_TOKENS_PER_S": "3",
    "RAGTREE_SERVING__GENERATOR__MAX_REPLICAS": "2",
    "RAGTREE_SERVING__GENERATOR__UPSCALE_DELAY_S": "0",
    "RAGTREE_SERVING__GENERATOR__DOWNSCALE_DELAY_S": "1",
}
# Another instance is added if more than half as many run. The controller itself admits more to one.
FEW = {"RAGTREE_CONTROLLER__MAX_RUNNING": "2"}
STREAMS = 4
# Half a minute of answer: Serve averages the load over ten seconds, and a replica has to start.
QUESTION = {"query": "What has Ruritania?", "collection": "long", "top_k": 1, "max_tokens": 90}


@pytest.fixture
def scaling(start_stack):
    stack = start_stack(SCALING, "scaling")
    stack.ingest("long", {"ruritania": "Ruritania has hills, and castles, and one railway. " * 12})
    until(lambda: len(running_on(stack)) == 1)
    before = running_on(stack).keys()
    redeploy(stack, **FEW)
    until(lambda: len(running_on(stack)) == 1 and not running_on(stack).keys() & before)
    return stack


def test_instances_scale_with_the_load(scaling):
    (first,) = running_on(scaling)
    with ThreadPoolExecutor(STREAMS) as asking:
        streams = [asking.submit(scaling.events, **QUESTION) for _ in range(STREAMS)]
        until(lambda: running_on(scaling) == {first: STREAMS})
        until(lambda: len(running_on(scaling)) == 2)
        # Running streams stay where they are, and the new instance takes the next query.
        with scaling.asking(**{**QUESTION, "max_tokens": 6}) as events:
            come_to(events, "output_text.delta")
            busy = running_on(scaling)
            assert terminal(events)["type"] == "query.completed"
        ends = [terminal(iter(stream.result()))["type"] for stream in streams]
    assert busy.pop(first) == STREAMS
    assert list(busy.values()) == [1]
    assert ends == ["query.completed"] * STREAMS
    until(lambda: len(running_on(scaling)) == 1)
    # While one drains, and again when it is gone.
    assert scaling.query(**{**QUESTION, "max_tokens": 1}).status_code == 200
    until(lambda: len(replicas(scaling)) == 1)
    assert scaling.query(**{**QUESTION, "max_tokens": 1}).status_code == 200
