"""A stack whose results are reranked: in the retriever's replica or, with shards, in one of theirs after the merge."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from rerank_server import serving
from stacks import FAKE, until

pytestmark = pytest.mark.ray

DOCUMENTS = {f"d{number}": f"The capital of country {number}" for number in range(12)}
QUESTION = {"query": "What is the capital of country 3?", "collection": "countries", "top_k": 3}


@pytest.fixture(scope="module")
def server():
    with serving() as server:
        yield server


@pytest.fixture(scope="module", params=[1, 2], ids=["one retriever", "two shards"])
def stack(request, start_stack, server):
    reranker = {"kind": "endpoint", "url": server.url, "shape": "cohere", "timeout_s": 30, "pause_s": 0}
    environment = {
        **FAKE,
        "RAGTREE_RETRIEVER__SHARDS__COUNT": str(request.param),
        "RAGTREE_RETRIEVER__RERANKER": json.dumps(reranker),
    }
    stack = start_stack(environment, f"reranked-{request.param}")
    stack.ingest("countries", DOCUMENTS)
    yield stack
    stack.stop()


def shown(reply: dict) -> list[str]:
    return [result["document_id"] for result in reply["results"]]


def test_answers_rest_on_reranked_results(stack, server):
    reply = stack.query(**QUESTION).json()
    assert shown(reply) == ["d11", "d10", "d9"]
    assert (reply["reranking"]["status"], reply["reranking"]["candidates"]) == ("done", 12)
    assert [result["score"] for result in reply["results"]] == [11.0, 10.0, 9.0]
    before = len(server.requests)
    plain = stack.query(**QUESTION, rerank=False).json()
    assert plain["reranking"] is None
    assert len(server.requests) == before


def test_provisional_documents_are_there_while_the_reranker_works(stack, server):
    # The second stage is the last one of the search itself. The gateway counts it when it has it.
    second = 'ragtree_retrieval_stage_seconds_count{stage="2"}'
    stack.query(**QUESTION)
    seen, asked = stack.metric(second), len(server.requests)
    server.released.clear()
    try:
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(stack.query, **QUESTION)
            until(lambda: answer.done() or (len(server.requests) == asked + 1 and stack.metric(second) == seen + 1))
            assert not answer.done(), answer.result()
            server.released.set()
            assert shown(answer.result().json()) == ["d11", "d10", "d9"]
    finally:
        server.released.set()


def test_failed_reranker_is_reported(stack, server):
    server.status = 503
    try:
        reply = stack.query(**QUESTION).json()
        assert (reply["reranking"]["status"], reply["reranking"]["reason"]) == ("failed", "unavailable")
        assert shown(reply) == shown(stack.query(**QUESTION, rerank=False).json())
        assert stack.metric('ragtree_rerank_failures_total{reason="unavailable"}') == 1
    finally:
        server.status = 200
    until(lambda: stack.query(**QUESTION).json()["reranking"]["status"] == "done")
