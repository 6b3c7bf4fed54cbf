import hashlib

import pytest
from gateway_requests import bearer

from gateway.limits.auth import Keyring
from gateway.settings import ApiKey, GatewaySettings
from protocol.errors import ConfigError

KEYS = (
    ApiKey(secret="sk-acme", tenant="acme"),
    ApiKey(secret="sha256:" + hashlib.sha256(b"sk-globex").hexdigest(), tenant="globex", admin=True),
)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer(""),
        bearer("sk-other"),
        bearer("sk-acm"),
        {"Authorization": "Basic sk-acme"},
        bearer(KEYS[1].secret.get_secret_value()),
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/query"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/collections"),
        ("PUT", "/v1/collections/default/documents/d"),
        ("GET", "/v1/jobs/job-1"),
    ],
)
async def test_missing_and_unknown_keys_are_refused(in_process, headers, method: str, path: str):
    async with in_process(api_keys=KEYS) as served:
        body = {"model": "fake-model", "messages": [{"role": "user", "content": "x"}]}
        body = {"query": "x"} if path == "/query" else body
        answer = await served.client.request(method, path, headers=headers, json=body if method == "POST" else None)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert (answer.json()["error"]["type"], answer.json()["error"]["code"]) == (
            "authentication_error",
            "invalid_api_key",
        )
        assert served.stack.retriever.requests == served.stack.retriever.uploads == []


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"])
async def test_routes_without_key(in_process, path: str):
    async with in_process(api_keys=KEYS) as served:
        assert (await served.client.get(path)).status_code == 200


async def test_key_gives_access_to_its_own_tenant_only(in_process):
    async with in_process(api_keys=KEYS) as served:
        mine = await served.client.post("/query", json={"query": "x"}, headers=bearer("sk-acme"))
        other = await served.client.post("/query", json={"query": "x"}, headers=bearer("sk-globex"))
        assert (mine.status_code, other.status_code) == (200, 404)
        assert [request.tenant for request in served.stack.retriever.requests] == ["acme", "globex"]
        listed = await served.client.get("/v1/collections", headers=bearer("sk-globex"))
        assert listed.json()["data"] == []


async def test_namespaces_follow_tenants(in_process):
    keys = (*KEYS, ApiKey(secret="sk-acme-2", tenant="acme"))
    async with in_process(api_keys=keys) as served:
        served.stack.retriever.collections["globex", "default"] = 1
        for key in ("sk-acme", "sk-acme-2", "sk-globex"):
            assert (await served.client.post("/query", json={"query": "x"}, headers=bearer(key))).status_code == 200
    first, second, foreign = [request.namespace for request in served.stack.controller.admitted]
    assert first == second != foreign
    assert "acme" not in first


async def test_without_keys_all_callers_are_the_default_tenant(in_process):
    async with in_process(default_tenant="acme") as served:
        answer = await served.client.post("/query", json={"query": "x"}, headers=bearer("whatever"))
        assert answer.status_code == 200
        assert served.stack.retriever.requests[0].tenant == "acme"


@pytest.mark.parametrize(
    "keys", [(ApiKey(secret="sha256:zz", tenant="a"),), (ApiKey(secret="sha256:00", tenant="a"),), (KEYS[0], KEYS[0])]
)
def test_invalid_keys_are_config_errors(keys):
    with pytest.raises(ConfigError):
        Keyring(GatewaySettings(api_keys=keys))


def test_secrets_are_not_in_reprs():
    assert "sk-acme" not in repr(KEYS[0])
