import re

import msgspec
import pytest
from gateway_fakes import MODEL

from gateway.settings import ApiKey
from gateway.wire import events
from retriever.loaders.registry import LOADERS


async def document(served) -> dict:
    return (await served.client.get("/openapi.json")).json()


def references(node: object) -> set[str]:
    return set(re.findall(r'"#/components/schemas/([^"]+)"', msgspec.json.encode(node).decode()))


async def test_every_reference_resolves(served):
    described = await document(served)
    assert references(described) <= set(described["components"]["schemas"])


async def test_every_error_has_the_same_schema(served):
    described = await document(served)
    seen = set()
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            for status, reply in operation["responses"].items():
                if int(status) >= 400:
                    assert references(reply) == {"ErrorReply"}, (method, path, status)
                    seen.add(int(status))
    assert seen >= {400, 404, 409, 413, 415, 422, 500, 503, 507}


async def test_every_loaders_media_type_is_described(served):
    upload = (await document(served))["paths"]["/v1/collections/{collection}/documents/{document_id}"]["put"]
    assert upload["requestBody"]["content"].keys() == {*LOADERS, "application/json", "application/octet-stream"}


@pytest.mark.parametrize("keys", [(), (ApiKey(secret="k", tenant="acme"),)])
async def test_security_schemes_are_listed_only_if_in_use(in_process, keys):
    async with in_process(api_keys=keys) as served:
        described = await document(served)
    asking = described["paths"]["/query"]["post"]
    assert ("security" in asking) == ("401" in asking["responses"]) == bool(keys)
    assert "security" not in described["paths"]["/healthz"]["get"]


async def test_every_event_is_described(served):
    schemas = (await document(served))["components"]["schemas"]
    tags = {schemas[kind.__name__]["properties"]["type"]["enum"][0] for kind in events.QUERY_EVENTS}
    assert len(tags) == 9
    assert {"query.completed", "query.incomplete", "query.failed"} <= tags


async def test_replies_have_the_documented_fields(served):
    schemas = (await document(served))["components"]["schemas"]
    reply = (await served.client.post("/query", json={"query": "x", "include": ["timeline", "logprobs"]})).json()
    assert set(reply) == set(schemas["Reply"]["properties"])
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
    completion = (await served.client.post("/v1/chat/completions", json=chat)).json()
    assert set(completion) == set(schemas["ChatCompletion"]["properties"])
