import asyncio

import pytest
from gateway_fakes import MODEL, Phases, Stack, eventually

from gateway.readiness import Readiness
from protocol.errors import DeployFailed, EngineDied, EngineNotReady, RetrieverNotReady, Unavailable

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}


async def test_ready(served):
    assert (await served.client.get("/healthz")).json() == {"status": "ok"}
    assert (await served.client.get("/readyz")).json() == {"status": "ok", "degraded": []}


@pytest.mark.parametrize(
    ("phase", "error", "part"),
    [
        ("engine_ready", EngineNotReady("loading"), "engine"),
        ("engine_ready", EngineDied("gone"), "engine"),
        ("engine_ready", RuntimeError("no such actor"), "engine"),
        ("retriever_ready", RetrieverNotReady("loading"), "retriever"),
        ("controller_ready", Unavailable("being restarted"), "controller"),
    ],
)
async def test_not_ready_names_missing_parts(served, phase: str, error: Exception, part: str):
    served.stack.phases.failing[phase] = error
    answer = await served.client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["error"]["param"] == part
    assert "retry-after" in answer.headers
    assert (await served.client.get("/healthz")).status_code == 200


async def test_failed_deployment_has_its_own_code(served):
    served.stack.phases.failing["engine_ready"] = DeployFailed("the generator cannot start: no such argument")
    served.stack.phases.failing["retriever_ready"] = RetrieverNotReady("loading")
    error = (await served.client.get("/readyz")).json()["error"]
    assert (error["code"], error["param"]) == ("deploy_failed", "engine,retriever")
    assert "no such argument" in error["message"]


@pytest.mark.parametrize(("path", "body"), [("/query", {"query": "x"}), ("/v1/chat/completions", CHAT)])
@pytest.mark.parametrize("stream", [False, True])
async def test_queries_are_refused_while_not_ready(stack: Stack, in_process, path: str, body: dict, stream: bool):
    stack.phases.failing["engine_ready"] = EngineNotReady("loading")
    async with in_process() as served:
        answer = await served.client.post(path, json=body | {"stream": stream})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_not_ready")
    assert "retry-after" in answer.headers
    assert stack.retriever.requests == []


async def test_silent_part_is_not_ready(stack: Stack, in_process):
    stack.phases.held.add("engine_ready")
    async with in_process(readiness_timeout_s=0.01) as served:
        answer = await served.client.post("/query", json={"query": "x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_not_ready")
        answer = await served.client.get("/v1/models")
        assert answer.status_code == 503


async def test_readiness_recovers(stack: Stack, in_process):
    stack.phases.failing["engine_ready"] = EngineNotReady("loading")
    async with in_process(readiness_interval_s=0.005) as served:
        assert (await served.client.post("/query", json={"query": "x"})).status_code == 503
        stack.phases.failing.clear()
        await eventually(lambda: served.app.state.gateway.readiness.missing() == {})
        assert (await served.client.post("/query", json={"query": "x"})).status_code == 200


async def test_a_part_is_back_while_another_does_not_answer(stack: Stack, in_process):
    stack.phases.failing["controller_ready"] = Unavailable("the controller is starting")
    async with in_process(readiness_interval_s=0.005, readiness_timeout_s=60) as served:
        readiness = served.app.state.gateway.readiness
        assert set(readiness.missing()) == {"controller"}
        stack.phases.held.add("retriever_ready")
        await eventually(lambda: stack.phases.waiting["retriever_ready"] == 1)
        stack.phases.failing.clear()
        await eventually(lambda: readiness.missing() == {})
        stack.phases.released["retriever_ready"].set()


async def test_a_missing_part_is_checked_sooner(stack: Stack, in_process):
    stack.phases.failing["controller_ready"] = Unavailable("the controller is starting")
    async with in_process(readiness_interval_s=5) as served:
        stack.phases.failing.clear()
        await eventually(lambda: served.app.state.gateway.readiness.missing() == {}, timeout_s=4)


async def test_dead_engine_is_noticed_by_a_failed_query(in_process):
    async with in_process(readiness_interval_s=60) as served:
        gone = EngineDied("gone")
        served.stack.phases.failing.update(prefill=gone, engine_ready=gone)
        # Its second engine was gone, too.
        assert (await served.client.post("/query", json={"query": "x"})).status_code == 500
        await eventually(lambda: "engine" in served.app.state.gateway.readiness.missing())
        searched = len(served.stack.retriever.requests)
        answer = await served.client.post("/query", json={"query": "x"})
        assert answer.json()["error"]["code"] == "engine_died"
        assert len(served.stack.retriever.requests) == searched, "must be refused before the search"


async def test_readiness_checks_survive_any_error():
    phases = Phases()
    stack = Stack()
    stack.phases = stack.generator.phases = stack.retriever.phases = stack.controller.phases = phases
    readiness = Readiness(stack, interval_s=0.001, timeout_s=1)
    with pytest.raises(EngineNotReady):
        readiness.engine()
    with pytest.raises(RetrieverNotReady):
        readiness.require_parts()
    async with readiness.watching():
        assert readiness.engine().model == MODEL
        phases.failing["engine_ready"] = ValueError("?")
        await eventually(lambda: "engine" in readiness.missing())
        phases.failing.clear()
        await eventually(lambda: readiness.missing() == {})
    before = len(asyncio.all_tasks())
    assert before == 1


async def test_metrics_are_exposed(served):
    await served.client.post("/query", json={"query": "x"})
    await served.client.post("/query", json={"query": "x", "collection": "nowhere"})
    text = (await served.client.get("/metrics")).text
    assert "ragtree_time_to_first_token_seconds_count 1.0" in text
    assert 'ragtree_requests_rejected_total{reason="unknown_collection"} 1.0' in text
