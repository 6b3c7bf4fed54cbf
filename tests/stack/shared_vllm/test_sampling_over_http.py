"""All sampling parameters in pairs, over all endpoints that answer: each is answered, and the engine goes on."""

import json

import httpx
import pytest
from all_pairs import all_pairs

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

SHORT = "What is the capital of Freedonia?"
LONG = " ".join(f"Remark {number} on Freedonia is of no importance." for number in range(60))
"""Longer than a step of the engine."""

OPTIONS = {
    "endpoint": ["query", "chat/completions", "completions", "responses"],
    "question": [SHORT, f"{LONG} {SHORT}"],
    "stream": [False, True],
    "n": [1, 3],
    "seed": [None, 0, -1, 2**53 - 1],
    "temperature": [0.0, 1e-10, 0.8, 2.0],
    "top_p": [1.0, 0.5, 1e-9],
    "sampling_top_k": [0, 1, 1_000_000],
    "min_p": [0.0, 1.0],
    "frequency_penalty": [None, 2.0],
    "presence_penalty": [0.0, -2.0],
    "repetition_penalty": [1.0, 10.0],
    "logit_bias": [{}, {"5": 100.0, "0": -100.0}],
    "stop": [[], ["a", "the very long stop string that never comes"]],
    "schema": [False, True],
}
ROWS = all_pairs(OPTIONS)

FORM = {
    "type": "object",
    "properties": {"sure": {"type": "boolean"}},
    "required": ["sure"],
    "additionalProperties": False,
}
OF_QUERIES = ("seed", "temperature", "top_p", "stream")


def body_of(row: dict[str, object], model: str) -> dict[str, object]:
    """The request of a row, with those of its parameters that its endpoint has."""
    endpoint, question, count, has_schema = (row.pop(name) for name in ("endpoint", "question", "n", "schema"))
    asked = {"max_tokens": 4, "collection": "countries", "top_k": 1}
    if endpoint == "query":
        return asked | {"query": question} | {name: row[name] for name in OF_QUERIES}
    asked |= {"model": model, **row}
    if endpoint == "responses":
        asked["max_output_tokens"] = asked.pop("max_tokens")
        form = {"text": {"format": {"type": "json_schema", "name": "x", "schema": FORM}}} if has_schema else {}
        return asked | {"input": question} | form
    # Without a temperature, all choices are the same, which is a 400.
    asked["n"] = count if row["temperature"] else 1
    if endpoint == "completions":
        return asked | {"prompt": question}
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": FORM}}}
    return asked | {"messages": [{"role": "user", "content": question}]} | (form if has_schema else {})


@pytest.fixture(scope="module")
def client(vllm_stack):
    with httpx.Client(base_url=vllm_stack.url, timeout=120) as client:
        yield client


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_a_request_is_answered_and_the_engine_goes_on(client, number):
    row = dict(ROWS[number])
    endpoint, stream = row["endpoint"], row["stream"]
    body = body_of(row, client.get("/v1/models").json()["data"][0]["id"])
    replied = client.post(f"/v1/{endpoint}", json=body)
    assert replied.status_code == 200, (body, replied.text)
    if stream:
        assert "failed" not in replied.text
        assert '"error": {' not in replied.text
    else:
        assert json.loads(replied.text).get("error") is None
    assert client.get("/readyz").status_code == 200
