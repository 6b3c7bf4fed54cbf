"""A stack of real engines on two Ray nodes, which stand for machines: each has folders and an address of its own.

What one has computed, the other one reads at it. A lost machine costs no query.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from second_machine import SecondMachine, of_several_machines
from stacks import DOCUMENT_TOKENS, HASHING, SMALL_ENGINE, StackUnderTest, come_to, long_documents, until

from services.stack.run_state import RunState

pytestmark = [
    pytest.mark.ray,
    pytest.mark.vllm,
    pytest.mark.prove("services/cluster/", "cachectl/runtime/", "cachectl/tiers/", "generator/peers/"),
]

ENVIRONMENT = {
    **HASHING,
    **SMALL_ENGINE,
    "RAGTREE_GENERATOR__MAX_MODEL_LEN": "2048",
    # Copies go to disk at once, where the test can see them.
    "RAGTREE_GENERATOR__KV__HOST_GIB": "0",
    "RAGTREE_GENERATOR__KV__DISK_GIB": "0.2",
    "RAGTREE_CONTROLLER__SWAP": "write_through",
    # An instance that answers takes no other query, so the next one goes to the other machine.
    "RAGTREE_CONTROLLER__MAX_RUNNING": "1",
    "RAGTREE_SERVING__GENERATOR__MIN_REPLICAS": "2",
}
DOCUMENTS = long_documents("Ruritania", "Freedonia")
READ_AT_PEERS = "ragtree_cache_peer_tokens_total"


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """The stack, and the machine that joins it while it starts."""
    environment = {**ENVIRONMENT, **of_several_machines(tmp_path_factory.mktemp("key"))}
    stack = StackUnderTest(tmp_path_factory.mktemp("first"), environment)
    second = SecondMachine(tmp_path_factory.mktemp("second") / "data", environment)
    try:
        with ThreadPoolExecutor(1) as starting:
            started = starting.submit(stack.start)
            second.join(until(RunState(stack.folder).running).ray_address)
            started.result()
        until(lambda: len(running_on(stack)) == 2)
        stack.ingest("countries", DOCUMENTS)
        yield stack, second
    finally:
        second.kill()
        stack.stop()


def test_one_machine_reads_what_the_other_has_computed_until_it_is_deleted(machines):
    stack, second = machines
    folders = (stack.folder, second.folder)
    assert cached_tokens(stack, "Ruritania") == 0
    computed_by = until(lambda: [folder for folder in folders if kv_files(folder)])
    with answering(stack, "Ruritania"):
        before = stack.metric(READ_AT_PEERS)
        assert cached_tokens(stack, "Ruritania") > DOCUMENT_TOKENS
        assert stack.metric(READ_AT_PEERS) - before > DOCUMENT_TOKENS
    # What is served elsewhere is not kept twice.
    assert [folder for folder in folders if kv_files(folder)] == computed_by
    files, nodes = kv_files(computed_by[0]), nodes_in_gpus(stack)
    assert delete(stack, "Ruritania") >= 1
    assert len(files - kv_files(computed_by[0])) == 1
    # The machine that has read it has it in its GPU only.
    assert nodes_in_gpus(stack) == {place: count - 1 for place, count in nodes.items()}


def test_a_lost_machine_costs_no_query(machines):
    stack, second = machines
    instances = set(running_on(stack))
    assert len(instances) == 2
    second.kill()
    # Before the controller knows of it, and after.
    for name in DOCUMENTS:
        assert cached_tokens(stack, name) >= 0
    (left,) = until(lambda: len(running_on(stack)) == 1 and set(running_on(stack)))
    assert left in instances
    assert all(cached_tokens(stack, name) > DOCUMENT_TOKENS for name in DOCUMENTS)
    # A machine that is away when a document is deleted is forgotten.
    assert delete(stack, "Freedonia") >= 1
    assert places(stack, "gpu") == {f"gpu@{left}"}
    assert len(places(stack, "disk")) == 1


def test_a_machine_comes_back_and_leaves_nothing_behind_when_it_goes(machines):
    stack, second = machines
    # Without room for an engine, which takes a minute to start.
    second.join(stack.running.ray_address, engines=0)
    until(lambda: second.joined(2))
    second.leave()


def cached_tokens(stack: StackUnderTest, name: str) -> int:
    reply = stack.query(**question(name, 2))
    assert reply.status_code == 200, reply.text
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def question(name: str, max_tokens: int) -> dict:
    return {"query": f"What has {name}?", "collection": "countries", "top_k": 1, "max_tokens": max_tokens}


@contextmanager
def answering(stack: StackUnderTest, name: str):
    """One instance answers for as long as the context is open.

    Its prompt is long beside what it finds: to wait for its turn costs more than to read at the other machine, on
    machines of all speeds.
    """
    asked = question(name, 800)
    with stack.asking(**{**asked, "query": " ".join([asked["query"]] * 80)}) as events:
        come_to(events, "output_text.delta")
        yield


def delete(stack: StackUnderTest, name: str) -> int:
    """Delete a document's KV; return in how many nodes it was. Returns when all machines have confirmed it."""
    with stack.client() as client:
        dropped = client.delete(f"/v1/admin/cache/documents/{name}?collection=countries").raise_for_status()
    return dropped.json()["nodes"]


def running_on(stack: StackUnderTest) -> dict[str, int]:
    """Return the number of running requests of each instance that gets any."""
    loads = stats(stack).get("instances", [])
    return {load["instance"]: load["running"] for load in loads if not load["retired"]}


def nodes_in_gpus(stack: StackUnderTest) -> dict[str, int]:
    return {held["place"]: held["nodes"] for held in stats(stack)["tiers"] if held["tier"] == "gpu"}


def places(stack: StackUnderTest, tier: str) -> set[str]:
    return {held["place"] for held in stats(stack)["tiers"] if held["tier"] == tier}


def stats(stack: StackUnderTest) -> dict:
    with stack.client() as client:
        answer = client.get("/v1/admin/cache/stats")
    # The controller does not answer while it starts.
    return answer.json() if answer.status_code == 200 else {}


def kv_files(folder: Path) -> set[Path]:
    return set(folder.rglob("*.safetensors"))
