"""The context of a prompt: its budgets, the facts in it, and replies that are nothing else."""

import pytest
from gateway_fakes import MODEL
from sse_reading import events_of, only_terminal

from protocol.graph import UNBOUNDED, ContextBudget, Entity, Path, Source, Subgraph
from protocol.prompts import SegmentKind

QUESTION = {"query": "Who?", "top_k": 2}
ASKED = {
    "/query": QUESTION,
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "Who?"}], "top_k": 2},
    "/v1/completions": {"model": MODEL, "prompt": "Who?", "top_k": 2},
    "/v1/responses": {"model": MODEL, "input": "Who?", "top_k": 2},
}
LIKES = Path(("Alice", "Titanic"), ("-like->",), (Source("d1", 0, "hash"),), 0.5)
GRAPH = Subgraph((Entity("Alice", 1.0, 3),), (), (LIKES,))
CONTEXT = "document number 0\ndocument number 1"
BUDGET = {"max_entity_tokens": 100, "max_relation_tokens": 200, "max_total_tokens": 900}


def prompts(served):
    return [request.prompt for request in served.stack.controller.admitted]


def answer_in(reply: dict) -> str:
    if "choices" in reply:
        choice = reply["choices"][0]
        return choice["message"]["content"] if "message" in choice else choice["text"]
    return reply["output_text"] if "output_text" in reply else reply["output"][0]["content"][0]["text"]


@pytest.mark.parametrize("path", [*ASKED, "/search"])
async def test_budgets_reach_the_layout(served, path):
    body = ASKED.get(path, QUESTION)
    assert (await served.client.post(path, json=body | BUDGET)).status_code == 200
    assert served.stack.layout.budgets[-1] == ContextBudget(100, 200, 900)


@pytest.mark.parametrize("path", ASKED)
async def test_without_budgets_the_layout_decides(served, path):
    assert (await served.client.post(path, json=ASKED[path])).status_code == 200
    assert served.stack.layout.budgets[-1] == UNBOUNDED


@pytest.mark.parametrize("path", [*ASKED, "/search"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_entity_tokens", -1),
        ("max_relation_tokens", "many"),
        ("max_relation_tokens", 1_000_001),
        ("max_total_tokens", 0),
        ("only_need_context", "yes"),
    ],
)
async def test_other_budgets_are_refused(served, path, field, value):
    answer = await served.client.post(path, json=ASKED.get(path, QUESTION) | {field: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, field)


async def test_paths_stand_behind_the_documents_in_graph_modes_only(served):
    served.stack.retriever.graph = GRAPH
    reply = (await served.client.post("/query", json=QUESTION | {"mode": "mix"})).json()
    (told,) = reply["graph"]["paths"]
    assert (told["entities"], told["relations"]) == (["Alice", "Titanic"], ["-like->"])
    await served.client.post("/query", json=QUESTION)
    with_facts, without = prompts(served)
    kinds = [segment.kind for segment in with_facts.segments]
    assert kinds == [SegmentKind.SYSTEM, *[SegmentKind.DOCUMENT] * 2, *[SegmentKind.QUESTION] * 2]
    assert with_facts.segments[-2].key == LIKES.text
    assert [segment for segment in with_facts.segments if segment.key != LIKES.text] == list(without.segments)


@pytest.mark.parametrize("field", ["max_entity_tokens", "max_relation_tokens"])
async def test_facts_can_be_turned_off(served, field):
    served.stack.retriever.graph = GRAPH
    reply = (await served.client.post("/query", json=QUESTION | {"mode": "mix", field: 0})).json()
    assert (reply["graph"]["paths"], reply["graph"]["entities"][0]["name"]) == ([], "Alice")
    assert prompts(served)[-1].paths == ()


@pytest.mark.parametrize("path", ASKED)
async def test_the_answer_can_be_the_context(served, path):
    reply = (await served.client.post(path, json=ASKED[path] | {"only_need_context": True})).json()
    assert answer_in(reply) == CONTEXT
    assert prompts(served) == [], "nothing is generated"
    streamed = await served.client.post(path, json=ASKED[path] | {"only_need_context": True, "stream": True})
    assert streamed.status_code == 200
    assert "document number 1" in streamed.text


async def test_a_context_has_its_sources_and_the_facts(served):
    served.stack.retriever.graph = GRAPH
    body = QUESTION | {"mode": "mix", "only_need_context": True, "stream": True}
    events = events_of((await served.client.post("/query", json=body)).text)
    assert [event["type"] for event in events] == [
        "query.created",
        "retrieval.completed",
        *["output_text.annotation.added"] * 2,
        "output_text.delta",
        "query.completed",
    ]
    reply = only_terminal(events)["response"]
    assert reply["output_text"] == f"{CONTEXT}\nAlice -like-> Titanic"
    assert [result["document_id"] for result in reply["results"]] == ["d0", "d1"]
    assert len(reply["citations"]) == 2
    assert reply["cited"] == []
    assert reply["usage"]["total_tokens"] == 0


async def test_several_contexts_are_refused(served):
    body = ASKED["/v1/chat/completions"] | {"only_need_context": True, "n": 2, "temperature": 1}
    answer = await served.client.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")


async def test_a_search_can_show_what_a_prompt_would_contain(served):
    served.stack.retriever.graph = GRAPH
    body = QUESTION | {"mode": "mix"}
    plain = (await served.client.post("/search", json=body)).json()
    assert "context" not in plain
    shown = (await served.client.post("/search", json=body | {"only_need_context": True})).json()
    assert shown["context"] == f"{CONTEXT}\nAlice -like-> Titanic"
    assert shown["results"] == plain["results"]


async def test_a_search_with_a_budget_leaves_out_what_a_prompt_has_no_room_for(served):
    settings = served.app.state.gateway.settings
    # The fake layout counts words: system prompt, first document, question, answer.
    served.stack.layout.context = 2 + 3 + 1 + settings.default_max_tokens
    body = QUESTION | {"max_total_tokens": 900}
    shown = (await served.client.post("/search", json=body)).json()
    assert [result["document_id"] for result in shown["results"]] == ["d0"]
    assert len((await served.client.post("/search", json=QUESTION)).json()["results"]) == 2
    served.stack.layout.context = 1
    answer = await served.client.post("/search", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "question_too_long", "query")
