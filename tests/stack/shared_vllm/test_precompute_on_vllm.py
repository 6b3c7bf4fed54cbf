"""``ragtree cache precompute`` on real vLLM: documents have their KV before anybody asks about them."""

import json
import re

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

SENTENCE = "The almanac of {} lists tides, sunrises, harvests and fairs for every month of the coming year. "
ALMANACS = {name: SENTENCE.format(name) * 20 for name in ("Borduria", "Syldavia")} | {
    "Ruritania": "".join(f"In year {year}: {SENTENCE.format('Ruritania')}" for year in range(60))
}


def precomputed(stack) -> dict:
    ran = stack.command("cache", "precompute", "--collection", "almanacs", "--json")
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def prefilled_tokens(stack) -> float:
    """Return how many prompt tokens the engine has been given."""
    with stack.client() as client:
        text = client.get("/metrics").raise_for_status().text
    (tokens,) = re.findall(r"^vllm:prompt_tokens_total\{.*\} (\S+)$", text, re.MULTILINE)
    return float(tokens)


def test_precomputed_documents_are_cached_for_the_first_query_and_not_computed_again(vllm_stack):
    vllm_stack.ingest("almanacs", ALMANACS)
    job = precomputed(vllm_stack)
    chunks = job["chunks"]
    assert (job["status"], job["documents_done"]) == ("completed", 3)
    assert chunks["computed"] == chunks["total"] > 3
    assert job["computed_tokens"] > 100 * chunks["total"]

    given = prefilled_tokens(vllm_stack)
    assert given >= job["computed_tokens"]
    again = precomputed(vllm_stack)
    assert again["chunks"] == {**chunks, "computed": 0, "present": chunks["total"]}
    assert again["computed_tokens"] == 0
    assert prefilled_tokens(vllm_stack) == given, "the engine has not run"

    asked = {"query": "What does the almanac of Syldavia list?", "collection": "almanacs", "top_k": 1, "max_tokens": 2}
    reply = vllm_stack.query(**asked).json()
    assert reply["citations"][0]["document_id"] == "Syldavia"
    usage = reply["usage"]
    # Everything but the question.
    assert usage["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"] - 60 > 100
