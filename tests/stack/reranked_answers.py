"""Tests of a stack whose results are reranked, in the retriever's replica or, with shards, in one of theirs."""

import json
from concurrent.futures import ThreadPoolExecutor

from rerank_server import RerankServer
from stacks import StackUnderTest, until

DOCUMENTS = {f"d{number}": f"The capital of country {number}" for number in range(12)}
QUESTION = {"query": "What is the capital of country 3?", "collection": "numbered", "top_k": 3}


def reranking_by(server: RerankServer) -> dict[str, str]:
    """The environment of a stack whose results this server reranks."""
    reranker = {"kind": "endpoint", "url": server.url, "shape": "cohere", "timeout_s": 30}
    return {"RAGTREE_RETRIEVER__RERANKER": json.dumps(reranker)}


def ingest_numbered(stack: StackUnderTest) -> None:
    """Ingest the documents that the tests ask about."""
    stack.ingest("numbered", DOCUMENTS)


def shown(reply: dict) -> list[str]:
    return [result["document_id"] for result in reply["results"]]


class RerankedAnswers:
    """Needs two fixtures: the ``server`` that reranks, and a ``reranked`` stack with the documents."""

    def test_answers_rest_on_reranked_results(self, reranked, server):
        reply = reranked.query(**QUESTION).json()
        assert shown(reply) == ["d11", "d10", "d9"]
        assert (reply["reranking"]["status"], reply["reranking"]["candidates"]) == ("done", 12)
        assert [result["score"] for result in reply["results"]] == [11.0, 10.0, 9.0]
        before = len(server.requests)
        plain = reranked.query(**QUESTION, rerank=False).json()
        assert plain["reranking"] is None
        assert len(server.requests) == before

    def test_provisional_documents_are_there_while_the_reranker_works(self, reranked, server):
        # The search has a stage of words, and at least one of vectors. Shards may send both at once: then the gateway
        # has the newer one only. It counts a stage when it has it, and has no final one before the reranker answers.
        stages = "ragtree_retrieval_stage_seconds_count"
        reranked.query(**QUESTION)
        seen, asked = reranked.metric_of_all(stages), len(server.requests)
        server.released.clear()
        try:
            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(reranked.query, **QUESTION)
                until(
                    lambda: (
                        answer.done() or (len(server.requests) == asked + 1 and reranked.metric_of_all(stages) > seen)
                    )
                )
                assert not answer.done(), answer.result()
                server.released.set()
                assert shown(answer.result().json()) == ["d11", "d10", "d9"]
        finally:
            server.released.set()

    def test_failed_reranker_is_reported(self, reranked, server):
        server.status = 503
        try:
            reply = reranked.query(**QUESTION).json()
            assert (reply["reranking"]["status"], reply["reranking"]["reason"]) == ("failed", "unavailable")
            assert shown(reply) == shown(reranked.query(**QUESTION, rerank=False).json())
            assert reranked.metric('ragtree_rerank_failures_total{reason="unavailable"}') == 1
        finally:
            server.status = 200
        until(lambda: reranked.query(**QUESTION).json()["reranking"]["status"] == "done")
