"""Reranking, from the request to the reply."""

import asyncio

import pytest
from gateway_fakes import MODEL, Stack, eventually, whenever_possible
from gateway_requests import by_label
from sse_reading import events_of, only_terminal

from protocol.retrieval import RerankFailure, Reranking

DONE = Reranking("done", None, candidates=30, elapsed_ms=12.5)
FAILED = Reranking("failed", RerankFailure.TIMEOUT, candidates=30, elapsed_ms=1000.0)
QUESTION = {"query": "What?", "top_k": 3, "include": ["stages", "timeline"]}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "What is the capital?"}]}


@pytest.mark.parametrize("rerank", [None, True, False])
@pytest.mark.parametrize(("path", "body"), [("/query", QUESTION), ("/v1/chat/completions", CHAT)])
async def test_requests_switch_reranking(served, path, body, rerank):
    assert (await served.client.post(path, json=body | {"rerank": rerank})).status_code == 200
    assert served.stack.retriever.requests[-1].rerank is rerank


@pytest.mark.parametrize("rerank", ["maybe", 1, "true"])
async def test_other_values_are_refused(served, rerank):
    answer = await served.client.post("/query", json=QUESTION | {"rerank": rerank})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "rerank")


@pytest.mark.parametrize(("reranking", "order", "reason"), [(DONE, [2, 1, 0], None), (FAILED, [0, 1, 2], "timeout")])
async def test_replies_events_and_timelines_show_reranking(served, reranking, order, reason):
    served.stack.retriever.reranking = reranking
    reply = (await served.client.post("/query", json=QUESTION)).json()
    shown = {
        "status": reranking.status, "reason": reason, "candidates": 30, "elapsed_ms": reranking.elapsed_ms
    }  # fmt: skip
    assert reply["reranking"] == shown
    assert [result["document_id"] for result in reply["results"]] == [f"d{rank}" for rank in order]
    assert reply["timings"]["retrieval_ms"] == 2.5 + reranking.elapsed_ms
    assert len(reply["timings"]["stages_ms"]) == 3
    entries = [entry for entry in reply["timeline"] if entry["name"] in {"retrieval_stage", "rerank"}]
    assert [entry["name"] for entry in entries] == ["retrieval_stage", "retrieval_stage", "rerank"]
    assert entries[-1]["detail"] == ("failed: timeout" if reason else "30 chunks")
    events = events_of((await served.client.post("/query", json=QUESTION | {"stream": True})).text)
    stages = [event for event in events if event["type"] == "retrieval.stage"]
    assert [event["final"] for event in stages] == [False, False, True]
    (retrieved,) = (event for event in events if event["type"] == "retrieval.completed")
    assert retrieved["reranking"] == only_terminal(events)["response"]["reranking"] == shown
    failures = await by_label(served, "ragtree_rerank_failures_total")
    assert failures == {failure.value: 2.0 * (failure.value == reason) for failure in RerankFailure}
    assert await by_label(served, "ragtree_retrieval_stage_seconds_count") == {"1": 2, "2": 2, "rerank": 2}


async def test_without_reranking_there_is_nothing_to_show(served):
    reply = (await served.client.post("/query", json=QUESTION)).json()
    assert reply["reranking"] is None
    events = events_of((await served.client.post("/query", json=QUESTION | {"stream": True})).text)
    assert not any("reranking" in event for event in events)


@pytest.mark.parametrize(("reranking", "outcome"), [(DONE, "wrong"), (FAILED, "confirmed")])
async def test_speculation_runs_beside_the_reranker(served, stack: Stack, reranking, outcome):
    stack.retriever.reranking = reranking
    stack.controller.decide = whenever_possible
    stack.phases.held.add("rerank")
    asking = asyncio.create_task(served.client.post("/query", json=QUESTION))
    await stack.phases.reached["rerank"].wait()
    # The generation on the search's own documents has begun, and the reranker still works.
    await eventually(lambda: stack.generator.calls["opened"] == 2)
    assert not asking.done()
    stack.phases.released["rerank"].set()
    timeline = (await asking).json()["timeline"]
    guesses = [entry for entry in timeline if entry["name"] == "speculation"]
    assert [guess["detail"] for guess in guesses] == ["wrong", outcome]
