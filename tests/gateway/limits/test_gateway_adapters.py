"""Adapters are models: callers choose them by name, and their KV has namespaces of its own."""

import openai
import pytest
from gateway_fakes import MODEL

from gateway.limits.auth import namespace_of
from protocol.kv import with_adapter

LEGAL, TERSE = "0a" * 16, "0b" * 16


@pytest.fixture(autouse=True)
def adapters(stack):
    stack.generator.adapters = {"legal": LEGAL, "acme/terse": TERSE}


@pytest.fixture
async def client(live):
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def namespaces(served):
    return [admitted.namespace for admitted in served.stack.controller.admitted]


async def test_they_are_listed_below_their_model(client):
    listed = [(model.id, model.parent) async for model in await client.models.list()]
    assert listed == [(MODEL, None), ("legal", MODEL), ("acme/terse", MODEL)]
    assert (await client.models.retrieve("acme/terse")).parent == MODEL


async def test_each_interface_serves_them_in_namespaces_of_their_own(live, client):
    tenant = namespace_of("default")
    chat = await client.chat.completions.create(model="legal", messages=[{"role": "user", "content": "What?"}])
    text = await client.completions.create(model="acme/terse", prompt="What?")
    response = await client.responses.create(model="legal", input="What?")
    assert [chat.model, text.model, response.model] == ["legal", "acme/terse", "legal"]
    for named, model in (({"model": "acme/terse"}, "acme/terse"), ({}, MODEL), ({"model": MODEL}, MODEL)):
        answer = await live.client.post("/query", json={"query": "What?"} | named)
        assert answer.json()["model"] == model
    expected = [with_adapter(tenant, digest) for digest in (LEGAL, TERSE, LEGAL, TERSE)] + [tenant, tenant]
    assert namespaces(live) == expected


@pytest.mark.parametrize(("path", "field"), [("/query", "query"), ("/v1/completions", "prompt")])
async def test_other_names_are_refused_with_those_that_there_are(served, path, field):
    answer = await served.client.post(path, json={field: "What?", "model": "legal2"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert error["message"] == f"The model 'legal2' is not served; use '{MODEL}', 'legal', 'acme/terse'."
    assert namespaces(served) == []
