"""A stack of a real engine that is stopped, started again, and loses its engine: nothing that was prefilled is lost."""

import psutil
import pytest
from stacks import FREEDONIA, HASHING, until

pytestmark = [
    pytest.mark.ray,
    pytest.mark.vllm,
    pytest.mark.prove("services/", "generator/", "cachectl/", "gateway/background/"),
]

ARCHIVE = "The archive of Ruritania holds letters, maps, ledgers and diaries from four centuries. " * 20
QUESTION = {"query": "What is the oldest map?", "collection": "archive", "top_k": 1, "max_tokens": 2, "temperature": 0}


@pytest.fixture(scope="module")
def stack(start_stack):
    stack = start_stack({**HASHING, "RAGTREE_GENERATOR__MAX_MODEL_LEN": "2048"}, "restarted")
    stack.ingest("archive", {"ruritania": ARCHIVE})
    stack.ingest("countries", {"freedonia": FREEDONIA})
    return stack


def usage(stack, **changed) -> dict:
    return stack.query(**{**QUESTION, **changed}).json()["usage"]


def cached(usage: dict) -> int:
    return usage["prompt_tokens_details"]["cached_tokens"]


def test_restart_keeps_all_prefilled_documents(stack):
    """An orderly stop, such as Ctrl-C, also saves the KV in the engine's blocks to disk."""
    before = usage(stack)
    assert cached(usage(stack, query="What is the oldest letter?")) > 300
    stack.interrupt()
    stack.start(RAGTREE_GATEWAY__PREFILL_INGESTED="true")
    events = stack.events(**{**QUESTION, "query": "What is the oldest diary?"})
    (resolved,) = [event for event in events if event["type"] == "cache.resolved"]
    assert resolved["tiers"] == {"disk": resolved["cached_tokens"]}
    assert resolved["cached_tokens"] > before["prompt_tokens"] - 60


def test_ingested_documents_are_prefilled_before_anybody_asks(stack):
    """The stack was started again with this setting, by the test above."""
    stack.ingest("ledger", {"ledger": ARCHIVE.replace("archive", "ledger")})
    until(lambda: stack.metric('ragtree_ingest_prefills_total{outcome="computed"}') == 1)
    asked = usage(stack, query="What is in the ledger?", collection="ledger")
    assert cached(asked) > asked["prompt_tokens"] - 60


def test_a_dead_engine_is_a_503_and_is_replaced(stack):
    capital = {**QUESTION, "query": "What is the capital of Freedonia?", "collection": "countries", "max_tokens": 16}
    (engine,) = stack.engines()
    engine.kill()
    psutil.wait_procs([engine], timeout=10)
    refused = until(lambda: (reply := stack.query(**capital)).status_code != 200 and reply)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] in ("engine_not_ready", "engine_died")
    until(stack.is_ready)
    assert "Marxville" in stack.query(**capital).json()["output_text"]
