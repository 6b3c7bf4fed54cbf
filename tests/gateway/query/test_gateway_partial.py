"""Answers without the results of a shard are marked as partial in every format."""

import json

import pytest
from gateway_requests import value
from sse_reading import events_of, only_terminal

QUESTION = {"query": "What is the capital?", "top_k": 3}
CHAT = {"model": "fake-model", "messages": [{"role": "user", "content": QUESTION["query"]}]}


@pytest.mark.parametrize(("missing", "partial"), [((), False), (("1", "3"), True)])
async def test_replies_and_events_name_missing_shards(served, missing, partial):
    served.stack.retriever.missing_shards = missing
    reply = (await served.client.post("/query", json=QUESTION)).json()
    assert (reply["partial"], reply["missing_shards"]) == (partial, list(missing))
    events = events_of((await served.client.post("/query", json=QUESTION | {"stream": True})).text)
    (retrieved,) = (event for event in events if event["type"] == "retrieval.completed")
    assert (retrieved.get("partial", False), retrieved.get("missing_shards", [])) == (partial, list(missing))
    response = only_terminal(events)["response"]
    assert (response["partial"], response["missing_shards"]) == (partial, list(missing))
    assert await value(served, "ragtree_retrieval_partial_total") == 2 * partial


@pytest.mark.parametrize("partial", [False, True])
async def test_openai_clients_see_partial_answers(served, partial):
    served.stack.retriever.missing_shards = ("1",) if partial else ()
    completion = (await served.client.post("/v1/chat/completions", json=CHAT)).json()
    assert completion["partial"] is partial
    text = (await served.client.post("/v1/chat/completions", json=CHAT | {"stream": True})).text
    datas = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    first, *rest = map(json.loads, datas)
    assert first["partial"] is partial
    assert first["citations"]
    assert not any("partial" in chunk for chunk in rest)
