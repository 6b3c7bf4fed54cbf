"""Graph modes, from the request to the reply."""

import pytest
from gateway_fakes import MODEL
from sse_reading import events_of, only_terminal

from protocol.graph import Entity, GraphMode, Path, Relation, Source, Subgraph

QUESTION = {"query": "Who?", "top_k": 2}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Who?"}]}
GRAPH = Subgraph(
    (Entity("Alice", 1.0, 3),),
    (Relation("Alice", "likes", "Titanic", 0.5, "d1", 0),),
    (Path(("Alice", "Titanic"), ("-likes->",), (Source("d1", 0, "hash"),), 0.5),),
)
SHOWN = {
    "entities": [{"name": "Alice", "score": 1.0, "chunks": 3}],
    "relations": [
        {"head": "Alice", "relation": "likes", "tail": "Titanic", "score": 0.5, "document_id": "d1", "index": 0}
    ],
    "paths": [
        {
            "entities": ["Alice", "Titanic"],
            "relations": ["-likes->"],
            "sources": [{"document_id": "d1", "index": 0, "content_hash": "hash"}],
            "score": 0.5,
        }
    ],
}


@pytest.mark.parametrize("mode", list(GraphMode))
@pytest.mark.parametrize(
    ("path", "body"), [("/query", QUESTION), ("/search", QUESTION), ("/v1/chat/completions", CHAT)]
)
async def test_requests_say_how_the_graph_is_used(served, path, body, mode):
    served.stack.retriever.graph = GRAPH
    assert (await served.client.post(path, json=body | {"mode": mode})).status_code == 200
    assert served.stack.retriever.requests[-1].mode is mode


async def test_without_a_mode_the_graph_is_not_used(served):
    reply = (await served.client.post("/search", json=QUESTION)).json()
    assert (reply["mode"], reply["graph"]) == ("naive", None)
    events = events_of((await served.client.post("/query", json=QUESTION | {"stream": True})).text)
    assert not any("graph" in event for event in events)
    assert only_terminal(events)["response"]["graph"] is None


async def test_replies_and_events_show_what_led_to_the_results(served):
    served.stack.retriever.graph = GRAPH
    found = (await served.client.post("/search", json=QUESTION | {"mode": "mix"})).json()
    assert (found["mode"], found["graph"]) == ("mix", SHOWN)
    events = events_of((await served.client.post("/query", json=QUESTION | {"mode": "mix", "stream": True})).text)
    (retrieved,) = (event for event in events if event["type"] == "retrieval.completed")
    assert retrieved["graph"] == only_terminal(events)["response"]["graph"] == SHOWN


@pytest.mark.parametrize("path", ["/query", "/search"])
async def test_a_collection_without_a_graph_is_a_conflict(served, path):
    answer = await served.client.post(path, json=QUESTION | {"mode": "local"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (409, "no_graph", "mode")


@pytest.mark.parametrize("mode", ["all", None, 1, ""])
async def test_other_modes_are_refused(served, mode):
    answer = await served.client.post("/search", json=QUESTION | {"mode": mode})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "mode")
