"""``POST /search``: what a query is answered from, without the answer."""

import asyncio

import pytest
from gateway_fakes import eventually
from gateway_requests import bearer, by_label, value

from gateway.settings import ApiKey
from protocol.errors import EngineNotReady, RetrieverNotReady
from protocol.retrieval import SearchKind

QUESTION = {"query": " What is the capital? ", "top_k": 3}


@pytest.mark.parametrize("path", ["/search", "/v1/search"])
async def test_search_finds_what_a_query_finds(served, path: str):
    searched = (await served.client.post(path, json=QUESTION)).json()
    asked = (await served.client.post("/query", json=QUESTION)).json()
    texts = [result.pop("text") for result in searched["results"]]
    assert texts == ["document number 0", "document number 1", "document number 2"]
    assert searched["results"] == asked["results"]
    assert (searched["object"], searched["collection"], searched["search"]) == ("search.results", "default", "dense")
    assert (searched["partial"], searched["missing_shards"]) == (False, [])
    assert searched["timings"]["stages_ms"] == [1.0, 2.5]
    assert searched["timings"]["retrieval_ms"] == 2.5
    assert 0 < searched["timings"]["total_ms"] < 10_000
    assert served.stack.generator.calls["opened"] == 1, "only the query generates"
    searching, asking = served.stack.retriever.requests
    assert searching == asking


async def test_body_controls_the_search(served):
    body = {
        "query": "x",
        "search": "hybrid",
        "filters": {"key": "lang", "type": "eq", "value": "en"},
        "collection": "default",
        "include": [],
    }
    answer = await served.client.post("/search", json=body)
    assert not any("text" in result for result in answer.json()["results"])
    (request,) = served.stack.retriever.requests
    assert (request.search, request.filters.key, request.top_k) == (SearchKind.HYBRID, "lang", 4)


@pytest.mark.parametrize("include", [[], ["results.text"]])
async def test_query_carries_texts_on_request(served, include: list[str]):
    answer = await served.client.post("/query", json=QUESTION | {"include": include})
    texts = [result.get("text") for result in answer.json()["results"]]
    assert texts == ([f"document number {rank}" for rank in range(3)] if include else [None] * 3)


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"query": " "}, 422, "invalid_value", "query"),
        ({"query": "x", "top_k": 0}, 422, "invalid_value", "top_k"),
        ({"query": "x", "max_tokens": 5}, 422, "invalid_value", "max_tokens"),
        ({"query": "x", "include": ["stages"]}, 422, "invalid_value", "include.0"),
        ({"query": "x", "collection": "nowhere"}, 404, "unknown_collection", "collection"),
        ({"query": "x", "collection": "empty"}, 409, "no_documents", "collection"),
        ({"query": "x", "filters": {"key": "no", "type": "eq", "value": 1}}, 400, "unknown_filter_key", "filters"),
        ({"query": "x" * 40_000}, 400, "question_too_long", "query"),
    ],
)
async def test_errors_are_those_of_a_query(served, body, status: int, code: str, param: str):
    answer = await served.client.post("/search", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)


async def test_search_needs_the_retriever_alone(served):
    served.stack.phases.failing["engine_ready"] = EngineNotReady("The engine is loading.")
    await served.app.state.gateway.readiness.check()
    assert (await served.client.post("/query", json=QUESTION)).status_code == 503
    assert (await served.client.post("/search", json=QUESTION)).status_code == 200
    served.stack.phases.failing["retriever_ready"] = RetrieverNotReady("The index is loading.")
    await served.app.state.gateway.readiness.check()
    refused = await served.client.post("/search", json=QUESTION)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, RetrieverNotReady.code)


async def test_search_that_takes_too_long_ends(stack, in_process):
    stack.phases.held.add("second_stage")
    async with in_process(query_timeout_s=0.05) as served:
        answer = await served.client.post("/search", json=QUESTION)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "deadline_exceeded")
        await eventually(lambda: stack.at_rest)


async def test_search_holds_a_slot_and_uses_no_tokens(stack, in_process):
    stack.phases.held.add("search")
    async with in_process(limits={"concurrent_queries": 1, "tokens_per_minute": 1}) as served:
        first = asyncio.create_task(served.client.post("/search", json=QUESTION))
        await eventually(lambda: stack.phases.waiting["search"] == 1)
        assert (await served.client.post("/search", json=QUESTION)).status_code == 429
        stack.phases.held.clear()
        stack.phases.released["search"].set()
        assert (await first).status_code == 200
        for _ in range(3):
            assert (await served.client.post("/search", json=QUESTION)).status_code == 200
        assert (await served.client.post("/query", json=QUESTION)).status_code == 200, "no token was charged"


async def test_search_counts_as_a_request_of_its_key(in_process):
    keys = (ApiKey(secret="k", tenant="acme"),)
    async with in_process(api_keys=keys, limits={"requests_per_minute": 1}) as served:
        assert (await served.client.post("/search", json=QUESTION)).status_code == 401
        statuses = [
            (await served.client.post("/search", json=QUESTION, headers=bearer("k"))).status_code for _ in range(2)
        ]
        assert statuses == [200, 429]
        (request,) = served.stack.retriever.requests
        assert request.tenant == "acme"


async def test_stages_are_measured_and_partial_results_marked(served):
    served.stack.retriever.missing_shards = ("2",)
    answer = (await served.client.post("/search", json=QUESTION)).json()
    assert (answer["partial"], answer["missing_shards"]) == (True, ["2"])
    assert await value(served, "ragtree_retrieval_partial_total") == 1
    assert await by_label(served, "ragtree_retrieval_stage_seconds_count") == {"1": 1, "2": 1}
    assert (await by_label(served, "ragtree_queries_total"))["completed"] == 0, "a search is no query"
