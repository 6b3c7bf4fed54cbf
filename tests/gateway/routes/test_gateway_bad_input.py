import json

import pytest
from fake_layout import FakeLayout
from gateway_fakes import MODEL, Stack

OK = {"query": "x"}


def assert_shape(answer, status: int, code: str | None = None, param: str | None = None) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    (error,) = answer.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in answer.text
    if code is not None:
        assert error["code"] == code
    if param is not None:
        assert error["param"] == param


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"query": ""}, 422, "query"),
        ({"query": " \n\t "}, 422, "query"),
        ({"query": 7}, 422, "query"),
        ({}, 422, "query"),
        ([], 422, None),
        (OK | {"top_k": 0}, 422, "top_k"),
        (OK | {"top_k": -1}, 422, "top_k"),
        (OK | {"top_k": 10_000}, 422, "top_k"),
        (OK | {"top_k": 1.5}, 422, "top_k"),
        (OK | {"max_tokens": 0}, 422, "max_tokens"),
        (OK | {"max_tokens": 10**30}, 422, "max_tokens"),
        (OK | {"seed": 10**30}, 422, "seed"),
        (OK | {"temperature": -1}, 422, "temperature"),
        (OK | {"collection": "../etc"}, 422, "collection"),
        (OK | {"collection": ""}, 422, "collection"),
        (OK | {"include": ["everything"]}, 422, "include.0"),
        (OK | {"namespace": "somebody-else"}, 422, "namespace"),
        (OK | {"filters": {"key": "lang", "type": "like", "value": "e"}}, 422, "filters"),
        (OK | {"filters": {"key": "lang", "type": "in", "value": "en"}}, 422, "filters.in.value"),
        (OK | {"filters": {"key": "lang", "type": "eq", "value": ["en"]}}, 422, None),
        (OK | {"filters": {"key": "n", "type": "eq", "value": None}}, 422, None),
        (OK | {"filters": {"type": "and", "filters": []}}, 422, "filters.and.filters"),
    ],
)
async def test_invalid_fields(served, body, status: int, param: str | None):
    assert_shape(await served.client.post("/query", json=body), status, param=param)
    assert served.stack.retriever.requests == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (OK | {"collection": "nowhere"}, 404, "unknown_collection", "collection"),
        (OK | {"collection": "empty"}, 409, "no_documents", "collection"),
        (OK | {"filters": {"key": "nope", "type": "eq", "value": 1}}, 400, "unknown_filter_key", "filters"),
        (OK | {"query": "x" * 40_000}, 400, "question_too_long", "query"),
        ({"query": "x " * 400_000}, 413, "payload_too_large", None),
    ],
)
async def test_unanswerable_requests(served, stream: bool, body, status: int, code: str, param: str | None):
    assert_shape(await served.client.post("/query", json=body | {"stream": stream}), status, code, param)


async def test_question_longer_than_the_context(stack: Stack, in_process):
    stack.layout = FakeLayout(context=300)
    async with in_process() as served:
        answer = await served.client.post("/query", json={"query": "x " * 200})
        assert_shape(answer, 400, "question_too_long", "query")
        chat = {"model": MODEL, "messages": [{"role": "user", "content": "x " * 200}]}
        answer = await served.client.post("/v1/chat/completions", json=chat)
        assert_shape(answer, 400, "question_too_long", "messages")


async def test_conflict_forbids_retries(served):
    answer = await served.client.post("/query", json=OK | {"collection": "empty"})
    assert answer.headers["x-should-retry"] == "false"


async def test_top_k_over_the_number_of_documents(served):
    answer = await served.client.post("/query", json=OK | {"top_k": 100})
    assert len(answer.json()["results"]) == 5


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"query": "\xff\xfe"}', 400),
        (b'{"query": ', 400),
        (b"query=x", 400),
        (b"[" * 100_000, 400),
        (b"", 422),
        (b"null", 422),
        (b'{"query": "\\ud800"}', 422),
        (b'{"query": "x", "\\ud800": 1}', 422),
        (b'{"query": "x", "filters": {"key": "k", "type": "eq", "value": "\\ud800"}}', 422),
        (b'{"query": "x", "filters": {"key": "k", "type": "in", "value": ["a", "\\ud800"]}}', 422),
        (b'{"query": "x", "temperature": NaN}', 422),
        (b'{"query": "x", "filters": {"key": "k", "type": "eq", "value": 1e999}}', 422),
        (b'{"query": "x", "filters": {"key": "k", "type": "eq", "value": ' + b"9" * 1000 + b"}}", 422),
    ],
)
async def test_malformed_bodies(served, body: bytes, status: int):
    answer = await served.client.post("/query", content=body, headers={"Content-Type": "application/json"})
    assert_shape(answer, status)


async def test_deeply_nested_filters(served):
    nested = {"key": "lang", "type": "eq", "value": "en"}
    for _ in range(300):
        nested = {"type": "and", "filters": [nested]}
    assert_shape(await served.client.post("/query", json=OK | {"filters": nested}), 422)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data"])
async def test_wrong_content_type(served, content_type: str):
    answer = await served.client.post("/query", content=json.dumps(OK), headers={"Content-Type": content_type})
    assert_shape(answer, 415, "unsupported_media_type")


async def test_json_with_a_charset_is_json(served):
    headers = {"Content-Type": "application/json; charset=utf-8"}
    assert (await served.client.post("/query", content=json.dumps(OK), headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("GET", "/query", 405), ("DELETE", "/v1/models", 405), ("GET", "/v1/jobs/none", 404)],
)
async def test_unknown_routes(served, method: str, path: str, status: int):
    answer = await served.client.request(method, path)
    assert_shape(answer, status)
    assert ("allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize("content", ["\\ud800", "who \\udc00?"])
async def test_lone_surrogate_in_a_chat_is_refused(served, content):
    body = f'{{"model": "tiny", "messages": [{{"role": "user", "content": "{content}"}}]}}'
    headers = {"Content-Type": "application/json"}
    assert_shape(await served.client.post("/v1/chat/completions", content=body, headers=headers), 422)
