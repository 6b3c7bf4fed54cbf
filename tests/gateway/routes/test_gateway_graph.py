"""``GET /v1/collections/{collection}/graph`` and ``ragtree graph show``, against a fake retriever."""

import asyncio
import json

import httpx
import pytest
from fastapi.testclient import TestClient
from gateway_fakes import Stack, eventually
from gateway_requests import bearer
from structlog.testing import capture_logs
from typer.testing import CliRunner

from gateway.app import create_app
from gateway.settings import ApiKey, GatewaySettings
from protocol.errors import RetrieverNotReady
from protocol.graph import GraphRequest, GraphSize, GraphView, ViewedEntity, ViewedRelation
from services.cli import graph
from services.cli.app import app as ragtree
from services.client import RequestFailed, StackClient

PATH = "/v1/collections/default/graph"
VIEW = GraphView(
    (ViewedEntity("Alice", 3, 0), ViewedEntity("[red]Titanic", 2, 1), ViewedEntity("Zoe", 1, 0)),
    (ViewedRelation("Alice", "likes", "[red]Titanic", "d1", 4), ViewedRelation("Alice", "is", "Alice", "d2", 0)),
    truncated=False,
    size=GraphSize(1200, 3400, 5600),
    unread_chunks=0,
    unreadable_chunks=0,
)


async def test_reply_is_the_view_and_its_collection(served):
    served.stack.retriever.view = VIEW
    answer = await served.client.get(PATH)
    assert answer.status_code == 200
    assert answer.json() == {
        "object": "graph",
        "collection": "default",
        "entities": [
            {"name": "Alice", "mentions": 3, "depth": 0},
            {"name": "[red]Titanic", "mentions": 2, "depth": 1},
            {"name": "Zoe", "mentions": 1, "depth": 0},
        ],
        "relations": [
            {"head": "Alice", "relation": "likes", "tail": "[red]Titanic", "document_id": "d1", "index": 4},
            {"head": "Alice", "relation": "is", "tail": "Alice", "document_id": "d2", "index": 0},
        ],
        "truncated": False,
        "size": {"entities": 1200, "statements": 3400, "relations": 5600},
        "unread_chunks": 0,
        "unreadable_chunks": 0,
    }
    (listed,) = [info for info in (await served.client.get("/v1/collections")).json()["data"] if info["chunks"] == 5]
    assert listed["graph"] == "ready"


async def test_parameters_say_what_is_wanted(served):
    served.stack.retriever.view = VIEW
    await served.client.get(PATH)
    given = {"label": ["Alice", "a&b = ü"], "max_depth": 0, "max_nodes": 1000, "max_relations": 0}
    assert (await served.client.get(PATH, params=given)).status_code == 200
    assert served.stack.retriever.viewed == [
        GraphRequest("default", "default", (), 2, 50, 100),
        GraphRequest("default", "default", ("Alice", "a&b = ü"), 0, 1000, 0),
    ]


@pytest.mark.parametrize(
    ("path", "status", "code", "param"),
    [
        ("/v1/collections/nowhere/graph", 404, "unknown_collection", "collection"),
        ("/v1/collections/-/graph", 422, "invalid_value", "collection"),
        (f"{PATH}?label=Alice&label=Nobody", 404, "unknown_entity", "label"),
        (f"{PATH}?label=", 422, "invalid_value", "label.0"),
        (f"{PATH}?label={'x' * 513}", 422, "invalid_value", "label.0"),
        (f"{PATH}?{'label=x&' * 21}", 422, "invalid_value", "label"),
        (f"{PATH}?max_nodes=0", 422, "invalid_value", "max_nodes"),
        (f"{PATH}?max_nodes=1001", 422, "invalid_value", "max_nodes"),
        (f"{PATH}?max_relations=-1", 422, "invalid_value", "max_relations"),
        (f"{PATH}?max_relations=2001", 422, "invalid_value", "max_relations"),
        (f"{PATH}?max_depth=6", 422, "invalid_value", "max_depth"),
        (f"{PATH}?max_depth=deep", 422, "invalid_value", "max_depth"),
    ],
)
async def test_refusals(served, path: str, status: int, code: str, param: str):
    served.stack.retriever.view = VIEW
    answer = await served.client.get(path)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)


async def test_a_collection_without_a_graph_is_a_conflict(served):
    answer = await served.client.get(PATH)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    error = answer.json()["error"]
    assert (error["code"], error["type"], error["param"]) == ("no_graph", "conflict_error", "collection")


async def test_a_retriever_that_is_away_is_unavailable_at_once(in_process, stack: Stack):
    stack.phases.failing["retriever_ready"] = RetrieverNotReady("away")
    async with in_process(readiness_interval_s=0.01) as served:
        async with asyncio.timeout(5):
            answer = await served.client.get(PATH)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "retriever_not_ready")
        assert "retry-after" in answer.headers
        assert stack.retriever.viewed == []
        del stack.phases.failing["retriever_ready"]
        await eventually(lambda: not served.app.state.gateway.readiness.missing())
        assert (await served.client.get(PATH)).status_code == 409


async def test_a_key_sees_its_own_tenants_graphs(in_process, stack: Stack):
    stack.retriever.view = VIEW
    keys = [ApiKey(secret=f"sk-{tenant}", tenant=tenant) for tenant in ("acme", "globex")]
    async with in_process(api_keys=keys) as served:
        assert (await served.client.get(PATH)).status_code == 401
        assert (await served.client.get(PATH, headers=bearer("sk-acme"))).status_code == 200
        assert (await served.client.get(PATH, headers=bearer("sk-globex"))).status_code == 404
    assert [request.tenant for request in stack.retriever.viewed] == ["acme"]


async def test_it_is_described(served):
    document = (await served.client.get("/openapi.json")).json()
    described = document["paths"]["/v1/collections/{collection}/graph"]["get"]
    assert {parameter["name"] for parameter in described["parameters"]} == {
        "collection", "label", "max_depth", "max_nodes", "max_relations",
    }  # fmt: skip
    assert {"200", "404", "409", "422", "503"} <= set(described["responses"])
    assert {"collection", "truncated", "unread_chunks", "unreadable_chunks"} <= set(
        document["components"]["schemas"]["GraphReply"]["required"]
    )


@pytest.fixture
def run(stack: Stack, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    # The gateway's log would mix with the command's output.
    with capture_logs(), TestClient(create_app(stack, GatewaySettings())) as http:

        def forward(asked: httpx.Request) -> httpx.Response:
            given = http.request(asked.method, str(asked.url), headers=dict(asked.headers))
            return httpx.Response(given.status_code, headers=dict(given.headers), content=given.content)

        def connect(url: str | None, key: str | None) -> StackClient:
            return StackClient(url or "http://here", key, transport=httpx.MockTransport(forward))

        monkeypatch.setattr(graph, "connect", connect)
        monkeypatch.setattr(graph.results, "_width", 100)
        yield lambda *arguments: CliRunner().invoke(ragtree, ["graph", "show", *arguments])


def test_show_prints_relations_and_entities_that_have_none(run, stack: Stack):
    stack.retriever.view = VIEW
    done = run("Alice", "Zoe", "--max-depth", "1", "--max-nodes", "7", "--max-relations", "8")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        "Alice -likes-> [red]Titanic  d1",
        "Alice -is-> Alice  d2",
        "Zoe",
        "graph of default: 1,200 entities, 3,400 statements, 5,600 relations",
    ]
    assert stack.retriever.viewed == [GraphRequest("default", "default", ("Alice", "Zoe"), 1, 7, 8)]


def test_show_says_what_is_missing(run, stack: Stack):
    size = GraphSize(1, 1, 0)
    stack.retriever.view = GraphView((), (), truncated=True, size=size, unread_chunks=1234, unreadable_chunks=5678)
    done = run()
    assert done.exit_code == 0, done.output
    assert "truncated:" in done.stderr
    assert "unread: the graph does not know 1,234 chunks yet" in done.stderr
    assert "unreadable: 5,678 chunks could not be read" in done.stderr
    assert "truncated:" not in done.stdout
    found = json.loads(run("--json").stdout)
    assert (found["truncated"], found["unread_chunks"]) == (True, 1234)


@pytest.mark.parametrize(("name", "code"), [("Nobody", "unknown_entity"), ("", "invalid_value")])
def test_show_refuses_what_is_unknown(run, stack: Stack, name: str, code: str):
    stack.retriever.view = VIEW
    refused = run(name)
    assert refused.exit_code == 1
    assert isinstance(refused.exception, RequestFailed)
    assert code in str(refused.exception)
