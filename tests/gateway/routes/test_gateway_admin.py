"""The admin routes: access by key, and names of documents."""

import pytest
from gateway_fakes import Stack
from gateway_requests import bearer

from gateway.limits.auth import Keyring, namespace_of
from gateway.settings import ApiKey, GatewaySettings
from protocol.cache import CachePath, DocumentDeletion
from protocol.errors import ConfigError, EngineDied, Unavailable
from protocol.kv import KvMemory
from protocol.retrieval import DocumentChunks

CACHE = "/v1/admin/cache"
ROUTES = [
    ("GET", f"{CACHE}/stats", None),
    ("GET", f"{CACHE}/tree", None),
    ("GET", f"{CACHE}/activity", None),
    ("POST", f"{CACHE}/warm", {"queries": ["x"]}),
    ("GET", f"{CACHE}/warm/none", None),
    ("POST", f"{CACHE}/precompute", {}),
    ("GET", f"{CACHE}/precompute/none", None),
    ("DELETE", f"{CACHE}/precompute/none", None),
    ("POST", f"{CACHE}/pin", {"document_id": "d1"}),
    ("DELETE", f"{CACHE}/documents/d1", None),
    ("POST", f"{CACHE}/clear", None),
]
ACME = ApiKey(secret="sk-acme", tenant="acme")
ROOT = ApiKey(secret="sk-root", tenant="acme", admin=True)
DEFAULT = namespace_of("default")
KV = KvMemory("f", "b", page_tokens=16, page_bytes=1600, gpu_pages=9, host_pages=0, disk_pages=0,
              host_bytes_per_s=1.0, disk_bytes_per_s=1.0)  # fmt: skip


def path(rank: int, namespace: str = DEFAULT) -> CachePath:
    return CachePath(namespace, ("system", f"hash{rank}"))


@pytest.mark.parametrize(("method", "url", "body"), ROUTES)
@pytest.mark.parametrize(
    ("settings", "key", "status"),
    [
        # Without any key, every caller is an administrator.
        ({}, None, None),
        # With API keys but none for administrators, no caller has access.
        ({"api_keys": (ACME,)}, "sk-acme", 403),
        ({"api_keys": (ACME,)}, None, 403),
        # Only the administrator's key gives access, with and without API keys.
        ({"admin_key": "sk-admin"}, "sk-admin", None),
        ({"admin_key": "sk-admin"}, None, 401),
        ({"admin_key": "sk-admin"}, "sk-other", 401),
        ({"admin_key": "sk-admin", "api_keys": (ACME,)}, "sk-admin", None),
        ({"admin_key": "sk-admin", "api_keys": (ACME,)}, "sk-acme", 403),
        # An API key marked as admin gives access.
        ({"api_keys": (ACME, ROOT)}, "sk-root", None),
        ({"api_keys": (ACME, ROOT)}, "sk-acme", 403),
    ],
)
async def test_admin_routes_by_key(in_process, stack: Stack, method, url, body, settings, key, status):
    stack.controller.nodes.update({path(1), path(1, namespace_of("acme"))})
    async with in_process(**settings) as served:
        answer = await served.client.request(method, url, json=body, headers=bearer(key))
        ended = 404 if url.endswith("/none") else 202 if url.endswith(("/warm", "/precompute")) else 200
        expected = status or ended
        assert answer.status_code == expected, answer.text
        if status:
            code = {401: "invalid_api_key", 403: "permission_denied"}[status]
            assert answer.json()["error"]["code"] == code
            assert stack.controller.deletions == []


async def test_admin_key_is_not_an_api_key(in_process):
    async with in_process(admin_key="sk-admin", api_keys=(ACME,)) as served:
        answer = await served.client.post("/query", json={"query": "x"}, headers=bearer("sk-admin"))
        assert answer.status_code == 401
    async with in_process(admin_key="sk-admin") as served:
        assert (await served.client.post("/query", json={"query": "x"})).status_code == 200


def test_admin_key_may_be_a_digest_but_not_an_api_key():
    digest = "sha256:" + "ab" * 32
    Keyring(GatewaySettings(admin_key=digest))
    with pytest.raises(ConfigError):
        Keyring(GatewaySettings(admin_key="sha256:zz"))
    with pytest.raises(ConfigError):
        Keyring(GatewaySettings(admin_key="sk-acme", api_keys=(ACME,)))


@pytest.mark.parametrize(
    ("settings", "asked"), [({}, False), ({"admin_key": "k"}, True), ({"api_keys": (ACME,)}, True)]
)
async def test_openapi_lists_the_admin_key_if_in_use(in_process, settings, asked):
    async with in_process(**settings) as served:
        described = (await served.client.get("/openapi.json")).json()
    clear = described["paths"][f"{CACHE}/clear"]["post"]
    assert ("security" in clear) == ("401" in clear["responses"]) == ("403" in clear["responses"]) == asked
    assert ("security" in described["paths"]["/query"]["post"]) == ("api_keys" in settings)
    schemes = described["components"].get("securitySchemes", {})
    assert set(schemes) == {
        name for name, there in (("admin_key", asked), ("api_key", "api_keys" in settings)) if there
    }


async def test_stats_have_tokens_and_bytes(in_process, stack: Stack):
    async with in_process() as served:
        (tier,) = (await served.client.get(f"{CACHE}/stats")).json()["tiers"]
    assert (tier["tier"], tier["used_tokens"], tier["used_bytes"], tier["capacity_bytes"]) == ("gpu", 250, None, None)
    stack.generator.kv = KV
    async with in_process() as served:
        stats = (await served.client.get(f"{CACHE}/stats")).json()
        tree = (await served.client.get(f"{CACHE}/tree")).json()
    assert tree["tiers"] == stats["tiers"]
    (tier,) = stats["tiers"]
    assert (tier["used_bytes"], tier["capacity_bytes"], tier["evictions"]) == (25_000, 100_000, 7)
    assert (stats["policy"], stats["planned_cached_tokens"], stats["planned_tokens"]) == ("LRU", 40, 100)


async def test_stats_and_tree_work_without_the_engine(served):
    served.stack.phases.failing["engine_ready"] = EngineDied("gone")
    await served.app.state.gateway.readiness.check()
    assert (await served.client.get(f"{CACHE}/stats")).json()["tiers"][0]["used_tokens"] == 250


async def test_tree_depth(served):
    tree = (await served.client.get(f"{CACHE}/tree", params={"depth": 2})).json()
    ((namespace, (top,)),) = tree["namespaces"].items()
    assert len(namespace) == 32
    assert (top["content"], top["locked"], top["children"][0]["content"]) == ("hash-system", True, "hash0")
    assert (await served.client.get(f"{CACHE}/tree", params={"depth": 0})).json()["namespaces"][namespace] == []
    assert (await served.client.get(f"{CACHE}/tree", params={"limit": 0})).json()["namespaces"][namespace] == []
    for limit in (-1, 10_001, "all"):
        assert (await served.client.get(f"{CACHE}/tree", params={"limit": limit})).status_code == 422
    for depth in (-1, 129, "deep"):
        assert (await served.client.get(f"{CACHE}/tree", params={"depth": depth})).status_code == 422


async def test_pinning_twice_and_unpinning_once(served):
    controller = served.stack.controller
    controller.nodes.add(path(1))
    for _ in range(2):
        answer = await served.client.post(f"{CACHE}/pin", json={"document_id": "d1"})
        assert answer.json() == {
            "object": "cache.pin", "document_id": "d1", "pinned": True, "chunks": 1, "held": 1,
        }  # fmt: skip
        assert controller.pins[path(1)] > 0
    answer = await served.client.post(f"{CACHE}/pin", json={"document_id": "d1", "pinned": False})
    assert (answer.status_code, answer.json()["pinned"], controller.pins[path(1)]) == (200, False, 0)
    answer = await served.client.post(f"{CACHE}/pin", json={"document_id": "d1", "pinned": False})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_node")


async def test_uncached_document_cannot_be_pinned(served):
    answer = await served.client.post(f"{CACHE}/pin", json={"document_id": "d1"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_node")
    assert "warm" in answer.json()["error"]["message"]


async def test_refused_pin_changes_nothing(served, monkeypatch):
    controller, retriever = served.stack.controller, served.stack.retriever
    chunks = [(await retriever.chunks("default", "default", f"d{rank}")).chunks[0] for rank in range(4)]

    async def of_four(*_):
        return DocumentChunks(tuple(chunks), retriever.revision)

    monkeypatch.setattr(retriever, "chunks", of_four)
    controller.nodes.update({path(0), path(1), path(3)})
    controller.pins[path(0)] = 1
    controller.most_pins = 3
    answer = await served.client.post(f"{CACHE}/pin", json={"document_id": "d1"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "pin_refused")
    assert +controller.pins == {path(0): 1}
    controller.most_pins = 4
    answer = await served.client.post(f"{CACHE}/pin", json={"document_id": "d1"})
    assert (answer.json()["chunks"], answer.json()["held"]) == (4, 3)


async def test_tenant_parameter_selects_the_owner(in_process, stack: Stack):
    acme = namespace_of("acme")
    stack.controller.nodes.add(path(1, acme))
    async with in_process(admin_key="k") as served:
        body = {"document_id": "d1", "tenant": "acme"}
        assert (await served.client.post(f"{CACHE}/pin", json=body, headers=bearer("k"))).status_code == 200
        assert stack.controller.pins[path(1, acme)] == 1
        url = f"{CACHE}/documents/d2"
        answer = await served.client.delete(url, params={"tenant": "acme"}, headers=bearer("k"))
        assert answer.json() == {"object": "cache.dropped", "nodes": 1}
    assert stack.controller.deletions == [DocumentDeletion(("hash2",), acme)]


@pytest.mark.parametrize(
    ("document", "collection", "code"), [("none", "default", "unknown_document"), ("d1", "none", "unknown_collection")]
)
async def test_unknown_documents(served, document: str, collection: str, code: str):
    answer = await served.client.delete(f"{CACHE}/documents/{document}", params={"collection": collection})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, code)
    answer = await served.client.post(f"{CACHE}/pin", json={"document_id": document, "collection": collection})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, code)
    assert served.stack.controller.deletions == []


async def test_dropping_kv_keeps_the_document(served):
    assert (await served.client.delete(f"{CACHE}/documents/d1")).status_code == 200
    assert (await served.client.get("/v1/collections/default/documents/d1")).status_code == 200


async def test_clearing_needs_the_controller(served):
    served.stack.controller.nodes.update({path(0), path(1)})
    assert (await served.client.post(f"{CACHE}/clear")).json() == {"object": "cache.dropped", "nodes": 2}
    served.stack.phases.failing["stats"] = Unavailable("being restarted")
    answer = await served.client.get(f"{CACHE}/stats")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert "retry-after" in answer.headers
