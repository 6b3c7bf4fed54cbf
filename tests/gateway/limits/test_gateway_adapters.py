"""Adapters are models: callers choose them by name, and their KV has namespaces of its own."""

import openai
import pytest
from fake_adapters import FOUND
from gateway_fakes import MODEL

from gateway.limits.auth import namespace_of
from gateway.settings import ApiKey
from protocol.generation import ServedAdapter
from protocol.kv import with_adapter

LEGAL, TERSE = "0a" * 16, "0b" * 16


@pytest.fixture(autouse=True)
def adapters(stack):
    stack.controller.adapters = {"legal": ServedAdapter(LEGAL), "acme/terse": ServedAdapter(TERSE)}


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


async def test_administrators_load_and_unload_them_while_the_stack_runs(served):
    client = served.client
    loaded = await client.put("/v1/admin/adapters/acme/brief", json={"source": "/adapters/brief"})
    row = {"object": "adapter", "name": "acme/brief", "digest": FOUND, "source": "/adapters/brief"}
    assert (loaded.status_code, loaded.json()) == (200, row)
    listed = (await client.get("/v1/admin/adapters")).json()["data"]
    assert [(one["name"], one["source"]) for one in listed] == [
        ("legal", None),
        ("acme/terse", None),
        ("acme/brief", "/adapters/brief"),
    ]
    # It is served at once, and no more once it is unloaded.
    answer = await client.post("/query", json={"query": "What?", "model": "acme/brief"})
    assert answer.json()["model"] == "acme/brief"
    unloaded = await client.delete("/v1/admin/adapters/acme/brief")
    assert (unloaded.status_code, unloaded.json()) == (200, {"object": "adapter.unloaded", "name": "acme/brief"})
    answer = await client.post("/query", json={"query": "What?", "model": "acme/brief"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


async def test_what_cannot_be_loaded_or_unloaded_says_why(served):
    client, place = served.client, "/v1/admin/adapters/brief"
    refused = await client.put(place, json={"source": "/nowhere"})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "source")
    assert error["message"] == "The adapter 'brief' cannot be served: /nowhere has no files."
    for body in ({}, {"source": ""}, {"source": 1}, {"source": "/a", "more": 1}):
        assert (await client.put(place, json=body)).status_code == 422
    for name in ("-x", "two words", "x" * 129):
        assert (await client.put(f"/v1/admin/adapters/{name}", json={"source": "/a"})).status_code == 422
    configured = await client.delete("/v1/admin/adapters/legal")
    assert (configured.status_code, configured.json()["error"]["code"]) == (409, "conflict")


async def test_only_administrators_do(in_process):
    async with in_process(api_keys=(ApiKey(secret="sk-1", tenant="acme"),), admin_key="sk-admin") as served:
        for method, path in (("GET", ""), ("PUT", "/legal"), ("DELETE", "/legal")):
            asked = {"json": {"source": "/adapters/brief"}} if method == "PUT" else {}
            for key, status in (("sk-1", 403), ("sk-2", 401)):
                headers = {"Authorization": f"Bearer {key}"}
                answer = await served.client.request(method, f"/v1/admin/adapters{path}", headers=headers, **asked)
                assert answer.status_code == status
    assert set(served.stack.controller.adapters) == {"legal", "acme/terse"}
