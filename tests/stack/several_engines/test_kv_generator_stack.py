"""A stack of real engines: one answers, and a KV generator works for the queries that wait for it.

Two controllers share both of them.
"""

from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from stacks import DOCUMENT_TOKENS, HASHING, SMALL_ENGINE, long_documents, until

pytestmark = [pytest.mark.ray, pytest.mark.prove("cachectl/", "generator/", "services/serve/")]

ENVIRONMENT = {
    **HASHING,
    **SMALL_ENGINE,
    "RAGTREE_GENERATOR__MAX_MODEL_LEN": "2048",
    "RAGTREE_SERVING__KV_GENERATORS__REPLICAS": "1",
    "RAGTREE_CONTROLLER__SHARDS": "2",
    # One answer at a time for each of them, so that queries wait.
    "RAGTREE_CONTROLLER__MAX_RUNNING": "1",
    "RAGTREE_CONTROLLER__PREPARE_AFTER_S": "0",
}
DOCUMENTS = long_documents("Ruritania", "Freedonia", "Sylvania", "Graustark")
GENERATED = "ragtree_cache_generated_tokens_total"
STATES = 'ragtree_instances{state="kv_generator"}'


@pytest.fixture(scope="module")
def stack(start_stack):
    stack = start_stack(ENVIRONMENT, "kv-generator")
    stack.ingest("countries", DOCUMENTS)
    until(lambda: stack.metric(STATES) == 1)
    return stack


def test_a_generator_computes_what_a_waiting_query_finds(stack):
    with ThreadPoolExecutor(len(DOCUMENTS)) as asking:
        replies = list(asking.map(lambda name: ask(stack, name), DOCUMENTS))
    # The instance that answers prefetches for one of the waiting queries itself, while it decodes.
    assert stack.metric(GENERATED) > 0
    cached = [reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in replies]
    assert sum(tokens > DOCUMENT_TOKENS for tokens in cached) >= 1
    assert stack.metric('ragtree_instances{state="serving"}') == 1


def test_a_lost_generator_costs_no_query(stack):
    (engine,) = (engine for engine in stack.engines() if generates(engine))
    lost = kv_generators(stack)
    engine.kill()
    with ThreadPoolExecutor(len(DOCUMENTS)) as asking:
        replies = list(asking.map(lambda name: ask(stack, name), DOCUMENTS))
    assert all(reply["usage"]["completion_tokens"] for reply in replies)
    # Not only started: until it takes plans, its start takes all of a slow machine's cores.
    until(lambda: kv_generators(stack) - lost and stack.metric(STATES) == 1)
    assert engine not in stack.engines()


def test_each_shard_keeps_its_documents_and_forgets_what_is_deleted(stack):
    before = {name: cached_tokens(stack, name) for name in DOCUMENTS}
    with stack.client() as client:
        tree = client.get("/v1/admin/cache/tree").raise_for_status().json()
        assert tree["nodes"] >= len(DOCUMENTS)
        for name in DOCUMENTS:
            dropped = client.delete(f"/v1/admin/cache/documents/{name}?collection=countries").raise_for_status()
            assert dropped.json()["nodes"] >= 1
    # The system prompt stays.
    assert all(cached_tokens(stack, name) < before[name] - DOCUMENT_TOKENS for name in DOCUMENTS)


def kv_generators(stack) -> set[str]:
    """The KV generators that take plans. One that comes back has another name."""
    with stack.client() as client:
        answer = client.get("/v1/admin/cache/stats")
    loads = answer.raise_for_status().json()["instances"]
    return {load["instance"] for load in loads if load["kv_generator"] and not load["retired"]}


def generates(engine: psutil.Process) -> bool:
    """Whether an engine belongs to a KV generator."""
    return any("ServeReplica:kv_generator" in " ".join(parent.cmdline()) for parent in engine.parents())


def cached_tokens(stack, name: str) -> int:
    return ask(stack, name, 1)["usage"]["prompt_tokens_details"]["cached_tokens"]


def ask(stack, name: str, max_tokens: int = 40) -> dict:
    question = {"query": f"What has {name}?", "collection": "countries", "top_k": 1, "max_tokens": max_tokens}
    return stack.query(**question).json()
