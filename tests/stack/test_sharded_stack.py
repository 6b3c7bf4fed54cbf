"""A stack whose index is in two shards: answers rest on both, and one that is lost is missed or fails the search."""

import pytest
from stacks import FAKE, HASHING, until

pytestmark = pytest.mark.ray

SHARDED = {**FAKE, **HASHING, "RAGTREE_RETRIEVER__SHARDS__COUNT": "2", "RAGTREE_RETRIEVER__SHARDS__TIMEOUT_S": "2"}
DOCUMENTS = {f"country {number}": f"The capital of country {number} is city {number}." for number in range(20)}
QUESTION = {"query": "What is the capital of country 7?", "collection": "countries", "top_k": 20}


def started(start_stack, on_lost):
    return start_stack({**SHARDED, "RAGTREE_RETRIEVER__SHARDS__ON_LOST": on_lost}, on_lost)


def has_all_shards(stack):
    """Listings are never partial."""
    with stack.client() as client:
        return client.get("/v1/collections").status_code == 200


def test_a_lost_shard_leaves_the_answer_partial_until_it_is_back(start_stack):
    stack = started(start_stack, "partial")
    # One shard is enough to be ready, and not to take documents in.
    until(lambda: has_all_shards(stack))
    stack.ingest("countries", DOCUMENTS)
    whole = stack.query(**QUESTION).json()
    assert {result["document_id"] for result in whole["results"]} == set(DOCUMENTS)
    assert (whole["partial"], whole["missing_shards"]) == (False, [])
    (replica,) = stack.processes("ServeReplica:retriever-1")
    replica.kill()
    partial = stack.query(**QUESTION).json()
    assert (partial["partial"], partial["missing_shards"]) == (True, ["1"])
    expected = [result for result in whole["results"] if result["chunk_id"].startswith("0.")]
    assert [result["chunk_id"] for result in partial["results"]] == [result["chunk_id"] for result in expected]
    assert stack.metric("ragtree_retrieval_partial_total") >= 1
    until(lambda: not stack.query(**QUESTION).json()["partial"])
    stack.stop()
    for count in ("1", "3"):
        ran = stack.command("up", RAGTREE_SERVER__PORT="0", **{**SHARDED, "RAGTREE_RETRIEVER__SHARDS__COUNT": count})
        assert ran.returncode == 1
        assert "retriever.shards.count 2" in ran.stderr


def test_a_lost_shard_fails_the_search_where_answers_are_to_be_whole(start_stack):
    stack = started(start_stack, "error")
    stack.ingest("countries", DOCUMENTS)
    assert stack.query(**QUESTION).status_code == 200
    (replica,) = stack.processes("ServeReplica:retriever-1")
    replica.kill()
    refused = stack.query(**QUESTION)
    assert (refused.status_code, refused.json()["error"]["code"]) in [
        (503, "retriever_not_ready"),
        (503, "shard_timeout"),
    ]
    until(lambda: stack.query(**QUESTION).status_code == 200)
    stack.stop()
