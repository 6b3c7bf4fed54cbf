"""Warm-up: replays the most frequent sequences of documents first, each once, without delaying queries."""

import asyncio

import pytest
from gateway_fakes import Stack, eventually

from gateway.background import idle
from gateway.limits.auth import namespace_of
from protocol.errors import EngineDied, EngineNotReady
from protocol.plans import NotWarmed, PlanOutcome

WARM = "/v1/admin/cache/warm"
NDJSON = {"Content-Type": "application/x-ndjson"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(idle, "_FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(idle, "_LONGEST_WAIT_S", 0.005)


async def started(served, body: dict) -> str:
    answer = await served.client.post(WARM, json=body)
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"{WARM}/{answer.json()['job_id']}"
    return answer.headers["location"]


async def ended(served, location: str) -> dict:
    async with asyncio.timeout(10):
        while (job := (await served.client.get(location)).json())["status"] in ("queued", "in_progress"):
            await asyncio.sleep(0.002)
    return job


def top(number: int) -> dict:
    """A query with this number of documents."""
    return {"query": f"query {number}", "top_k": number}


def documents(stack: Stack) -> list[int]:
    return [len(request.prompt.documents) for request in stack.controller.warmed]


async def test_frequent_sequences_are_replayed_first_and_once(served):
    queries = [top(1), top(3), {**top(2), "query": "else"}, top(2), top(3), top(2), "as usual"]
    job = await ended(served, await started(served, {"queries": queries}))
    assert documents(served.stack) == [2, 3, 1, 4]
    assert (job["status"], job["queries"], job["resolved"], job["unresolved"]) == ("completed", 7, 7, 0)
    assert (job["sequences"], job["warmed"], job["present"], job["failed"]) == (4, 4, 0, 0)
    assert job["computed_tokens"] > 0
    assert [sampling.max_tokens for sampling in served.stack.generator.samplings] == [1] * 4


async def test_replay_completes_its_plans(served):
    await ended(served, await started(served, {"queries": [top(2)]}))
    controller = served.stack.controller
    await eventually(lambda: len(controller.told) == 2)
    (query_id,) = {query_id for query_id, _ in controller.told}
    assert controller.told == [(query_id, ()), (query_id, PlanOutcome.COMPLETED)]
    assert controller.warmed[0].namespace == namespace_of("default")
    assert controller.warmed[0].found_at == (served.stack.retriever.revision,)
    assert served.stack.at_rest


async def test_present_documents_are_not_computed(served):
    await ended(served, await started(served, {"queries": [top(2)]}))
    job = await ended(served, await started(served, {"queries": [top(2), top(1)]}))
    assert (job["warmed"], job["present"]) == (1, 1)
    assert documents(served.stack) == [2, 1]


async def test_replay_waits_for_a_busy_controller(served):
    controller = served.stack.controller
    controller.busy = True
    location = await started(served, {"queries": [top(2)]})
    await served.stack.phases.reached["warm"].wait()
    served.stack.phases.reached["warm"].clear()
    await served.stack.phases.reached["warm"].wait()
    assert (await served.client.get(location)).json()["status"] == "in_progress"
    assert controller.warmed == controller.reports == [], "the refused request must not lease a plan"
    controller.busy = False
    assert (await ended(served, location))["warmed"] == 1


async def test_query_during_the_call_is_not_taken_for_present_documents(served):
    """The controller is busy when it refuses, and idle again at the second call."""
    controller = served.stack.controller
    warm, refusals = controller.warm, 0

    async def overtaken(request, evicting):
        nonlocal refusals
        if not refusals:
            refusals += 1
            return NotWarmed.BUSY
        return await warm(request, evicting)

    controller.warm = overtaken
    job = await ended(served, await started(served, {"queries": [top(2)]}))
    assert (job["warmed"], job["present"]) == (1, 0)


@pytest.mark.parametrize("phase", ["search", "warm", "prefill"])
async def test_query_interrupts_replay_in_any_phase(live, phase: str):
    stack = live.stack
    stack.phases.held.add(phase)
    location = await started(live, {"queries": [top(2)]})
    await eventually(lambda: stack.phases.waiting[phase] == 1)
    stack.phases.held.clear()
    assert (await live.client.post("/query", json={"query": "x"})).status_code == 200
    job = await ended(live, location)
    assert (job["status"], job["warmed"]) == ("completed", 1)
    # Before the request for a plan, there is none to release.
    given_up = 0 if phase == "search" else 1
    await eventually(lambda: stack.at_rest and len(stack.controller.reports) == 2 + given_up)
    outcomes = sorted(report.outcome for report in stack.controller.reports)
    assert outcomes == [PlanOutcome.CANCELLED] * given_up + [PlanOutcome.COMPLETED] * 2
    assert stack.phases.waiting[phase] == 0


async def test_replay_waits_for_running_queries(live):
    live.stack.phases.held.add("decode")
    asking = asyncio.create_task(live.client.post("/query", json={"query": "x"}))
    await live.stack.phases.reached["decode"].wait()
    searched = len(live.stack.retriever.requests)
    location = await started(live, {"queries": [top(2)]})
    for _ in range(3):
        assert (await live.client.get(location)).json()["status"] == "in_progress"
    assert len(live.stack.retriever.requests) == searched
    live.stack.phases.released["decode"].set()
    assert (await asking).status_code == 200
    assert (await ended(live, location))["warmed"] == 1


async def test_replay_waits_for_a_restarting_engine(in_process, stack: Stack):
    stack.phases.failing["engine_ready"] = EngineNotReady("loading")
    async with in_process(readiness_interval_s=0.005) as served:
        location = await started(served, {"queries": [top(2)]})
        async with asyncio.timeout(5):
            while (await served.client.get(location)).json()["status"] != "in_progress":
                await asyncio.sleep(0)
        assert stack.retriever.requests == []
        stack.phases.failing.clear()
        assert (await ended(served, location))["warmed"] == 1


async def test_failed_queries_are_counted_and_skipped(served):
    served.stack.phases.failing["prefill"] = EngineDied("gone")
    location = await started(served, {"queries": [top(1), {"query": "x", "collection": "nowhere"}]})
    job = await ended(served, location)
    assert (job["status"], job["resolved"], job["unresolved"], job["failed"]) == ("failed", 1, 1, 1)
    assert job["last_error"]["code"] == "engine_died"
    served.stack.phases.failing.clear()
    job = await ended(served, await started(served, {"queries": [top(1), {"query": "x", "collection": "nowhere"}]}))
    assert (job["status"], job["warmed"], job["last_error"]["code"]) == ("completed", 1, "unknown_collection")


async def test_dead_engine_fails_one_sequence_only(in_process, stack: Stack):
    # No periodic check: only the failure itself reports the dead engine.
    async with in_process(readiness_interval_s=60) as served:
        stack.phases.held.add("prefill")
        location = await started(served, {"queries": [top(1), top(2)]})
        await eventually(lambda: stack.phases.waiting["prefill"] == 1)
        stack.phases.failing.update(prefill=EngineDied("gone"), engine_ready=EngineDied("gone"))
        stack.phases.released["prefill"].set()
        async with asyncio.timeout(10):
            while not (job := (await served.client.get(location)).json())["failed"]:
                await asyncio.sleep(0.002)
        for _ in range(5):
            job = (await served.client.get(location)).json()
            assert (job["status"], job["failed"]) == ("in_progress", 1)
        stack.phases.failing.clear()
        await served.app.state.gateway.readiness.check()
        job = await ended(served, location)
    assert (job["failed"], job["warmed"]) == (1, 1)


async def test_unhandled_error_fails_the_job_without_details(served):
    served.stack.phases.failing["warm"] = RuntimeError("secret")
    answer = await served.client.get(await started(served, {"queries": [top(1)]}))
    job = await ended(served, answer.request.url.path)
    assert (job["status"], job["last_error"]["code"]) == ("failed", "internal_error")
    assert "secret" not in job["last_error"]["message"]


async def test_one_warm_up_at_a_time_and_only_the_last_is_kept(served):
    served.stack.controller.busy = True
    first = await started(served, {"queries": [top(1)]})
    answer = await served.client.post(WARM, json={"queries": [top(1)]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
    served.stack.controller.busy = False
    await ended(served, first)
    await ended(served, await started(served, {"queries": [top(1)]}))
    answer = await served.client.get(first)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_job")


async def test_warm_up_from_the_query_log(tmp_path, in_process, stack: Stack):
    async with in_process(data_dir=tmp_path) as served:
        for body in (top(1), top(3), top(3)):
            assert (await served.client.post("/query", json=body)).status_code == 200
    async with in_process(data_dir=tmp_path) as served:
        job = await ended(served, await started(served, {"log": True}))
    assert (job["queries"], job["sequences"], job["warmed"]) == (3, 2, 2)
    assert documents(stack) == [3, 1]


async def test_warm_up_from_an_empty_log_completes(served):
    job = await ended(served, await started(served, {"log": True}))
    assert (job["status"], job["queries"]) == ("completed", 0)


async def test_warm_up_from_json_lines(served):
    served.stack.retriever.collections["acme", "c"] = 5
    content = b'{"time": 1.5, "tenant": "acme", "collection": "c", "query": "x", "top_k": 2}\n\n"what else?"\n'
    answer = await served.client.post(WARM, content=content, headers=NDJSON)
    job = await ended(served, answer.headers["location"])
    assert (job["queries"], job["warmed"]) == (2, 2)
    assert {request.namespace for request in served.stack.controller.warmed} == {
        namespace_of("acme"),
        namespace_of("default"),
    }


async def test_default_collection_and_tenant_of_queries(served):
    served.stack.retriever.collections |= {("acme", "a"): 5, ("acme", "b"): 5}
    body = {"queries": ["x", {"query": "y", "collection": "b"}], "collection": "a", "tenant": "acme"}
    await ended(served, await started(served, body))
    assert {(r.tenant, r.collection, r.query) for r in served.stack.retriever.requests} == {
        ("acme", "a", "x"),
        ("acme", "b", "y"),
    }


@pytest.mark.parametrize(
    ("content", "headers", "status", "param"),
    [
        (b"{}", {}, 422, "body"),
        (b'{"queries": []}', {}, 422, "body"),
        (b'{"queries": ["x"], "log": true}', {}, 422, "body"),
        (b'{"queries": [""]}', {}, 422, None),
        (b'{"queries": [{"query": "x", "top_k": 0}]}', {}, 422, None),
        (b"{", {}, 400, None),
        (b"x", {"Content-Type": "text/plain"}, 415, None),
        (b'"x"\n{"query": 7}\n', NDJSON, 422, None),
        (b"\n", NDJSON, 422, "body"),
        (b'"' + b"x" * 40_000 + b'"', NDJSON, 400, "queries"),
    ],
)
async def test_invalid_bodies_are_refused(served, content: bytes, headers: dict, status: int, param: str | None):
    answer = await served.client.post(WARM, content=content, headers={"Content-Type": "application/json", **headers})
    assert answer.status_code == status, answer.text
    assert param is None or answer.json()["error"]["param"] == param
    assert served.stack.retriever.requests == []


async def test_error_names_the_broken_line(served):
    answer = await served.client.post(WARM, content=b'"x"\n{"query": 7}\n', headers=NDJSON)
    assert "line 2" in answer.json()["error"]["message"]


async def test_log_may_be_larger_than_a_query(in_process):
    async with in_process(max_query_chars=50) as served:
        body = {"queries": ["x" * 50] * 50}
        assert (await served.client.post(WARM, json=body)).status_code == 202


async def test_shutdown_cancels_the_warm_up(in_process, stack: Stack):
    stack.phases.held.add("prefill")
    async with in_process() as served:
        await started(served, {"queries": [top(2)]})
        await stack.phases.reached["prefill"].wait()
    assert [report.outcome for report in stack.controller.reports] == [PlanOutcome.CANCELLED]
    assert stack.at_rest
