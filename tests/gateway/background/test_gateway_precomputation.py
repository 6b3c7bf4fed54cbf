"""Precomputation: the chunks of stored documents and frequent sequences, without evicting or computing twice."""

import asyncio
from collections import Counter

import msgspec
import pytest
from gateway_fakes import Stack, chunk, eventually
from gateway_requests import by_label

from gateway.background import cache_filling, idle
from gateway.limits.auth import namespace_of
from protocol.cache import TierStats, TreeNode, TreeView
from protocol.errors import EngineDied, EngineFailed, RetrieverNotReady, Unavailable
from protocol.plans import PlanOutcome, Reuse
from protocol.tiers import Tier

PRECOMPUTE = "/v1/admin/cache/precompute"
NOTHING = {"total": 0, "computed": 0, "present": 0, "no_room": 0, "failed": 0}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(idle, "_FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(idle, "_LONGEST_WAIT_S", 0.005)


@pytest.fixture
def stack(stack: Stack) -> Stack:
    """Five documents of three chunks, and room for a thousand tokens."""
    stack.controller.tiers = (TierStats(Tier.GPU, "a", 1000, 0, 0, 0, 0, "gpu@a"),)
    stack.retriever.chunks_of = 3
    return stack


async def started(served, **body) -> str:
    answer = await served.client.post(PRECOMPUTE, json=body)
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"{PRECOMPUTE}/{answer.json()['job_id']}"
    return answer.headers["location"]


async def ended(served, location: str) -> dict:
    async with asyncio.timeout(10):
        while (job := (await served.client.get(location)).json())["status"] in ("queued", "in_progress"):
            await asyncio.sleep(0.002)
    return job


async def precomputed(served, **body) -> dict:
    return await ended(served, await started(served, **body))


def computed(stack: Stack) -> list[tuple[str, ...]]:
    """The documents of each plan, in order."""
    return [tuple(document.key for document in request.prompt.documents) for request in stack.controller.warmed]


def donors(rank: int) -> list[tuple[str, ...]]:
    first = chunk(rank).content_hash
    return [(first,), (first, f"{first}-1"), (first, f"{first}-2")]


def node(content: str, *children: TreeNode, places: tuple[str, ...] = ("host",)) -> TreeNode:
    return TreeNode("00", content, 3, places, 1.0, 0, False, False, children, 0)


def holding(stack: Stack, *documents: TreeNode) -> None:
    """Let the tree hold these documents behind the system prompt, for the default tenant."""

    async def tree(_depth: int, _limit: int) -> TreeView:
        return TreeView({namespace_of("default"): (node("system", *documents),)}, 9, stack.controller.tiers)

    stack.controller.tree = tree


async def test_every_chunk_is_computed_behind_its_documents_first_one(served):
    job = await precomputed(served)
    assert (job["status"], job["documents"], job["documents_done"]) == ("completed", 5, 5)
    assert (job["chunks"], job["sequences"]) == (NOTHING | {"total": 15, "computed": 15}, NOTHING)
    assert job["computed_tokens"] > 0
    assert computed(served.stack) == [donor for rank in range(5) for donor in donors(rank)]
    assert {request.reuse for request in served.stack.controller.warmed} == {Reuse.EXACT}
    assert (await by_label(served, "ragtree_ingest_prefills_total"))["computed"] == 15


async def test_one_collection_of_one_tenant(served):
    served.stack.retriever.collections |= {("acme", "small"): 1, ("other", "small"): 2}
    job = await precomputed(served, collection="small", tenant="acme")
    assert (job["documents_done"], job["chunks"]["computed"]) == (1, 3)
    assert {request.namespace for request in served.stack.controller.warmed} == {namespace_of("acme")}


async def test_all_collections_of_the_tenant(served):
    served.stack.retriever.collections |= {("default", "small"): 1, ("other", "more"): 2}
    job = await precomputed(served)
    assert (job["documents"], job["documents_done"]) == (6, 6)
    assert {request.namespace for request in served.stack.controller.warmed} == {namespace_of("default")}


async def test_what_is_there_is_not_computed_again(served):
    await precomputed(served)
    prefills = len(served.stack.generator.samplings)
    job = await precomputed(served)
    assert (job["status"], job["chunks"]) == ("completed", NOTHING | {"total": 15, "present": 15})
    assert job["computed_tokens"] == 0
    assert len(served.stack.generator.samplings) == prefills


async def test_one_look_at_the_tree_finds_what_is_cached(served):
    """Chunks that the tree holds cost the controller no further call. Nodes without KV do not count."""
    controller = served.stack.controller
    first, second, third = donors(3)
    holding(served.stack, node(first[-1], node(second[-1]), node(third[-1], places=())), node("hash4", places=()))
    warm, asked_for = controller.warm, []

    async def noted(request, evicting):
        asked_for.append(tuple(document.key for document in request.prompt.documents))
        return await warm(request, evicting)

    controller.warm = noted
    job = await precomputed(served)
    assert job["chunks"] == NOTHING | {"total": 15, "computed": 13, "present": 2}
    assert asked_for == [donor for rank in range(5) for donor in donors(rank) if donor not in (first, second)]


async def test_what_does_not_fit_is_skipped_and_shorter_chunks_are_computed(served):
    (tier,) = served.stack.controller.tiers
    # The first chunk of a document has 2 + 3 tokens with the system prompt, the others have 8.
    served.stack.controller.tiers = (msgspec.structs.replace(tier, used_tokens=995),)
    holding(served.stack, node("hash1"), node("hash4", node("hash4-1")))
    job = await precomputed(served)
    assert (job["status"], job["documents_done"]) == ("no_room", 5)
    assert job["chunks"] == NOTHING | {"total": 15, "computed": 3, "present": 3, "no_room": 9}
    assert computed(served.stack) == [("hash0",), ("hash2",), ("hash3",)]


async def test_full_tiers_end_the_computing_but_not_the_counting(served, monkeypatch):
    monkeypatch.setattr(cache_filling, "_REFUSALS", 2)
    controller = served.stack.controller
    (tier,) = controller.tiers
    controller.tiers = (msgspec.structs.replace(tier, used_tokens=1000),)
    holding(served.stack, node("hash1"))
    warm, tried = controller.warm, []

    async def noted(request, evicting):
        tried.append(tuple(document.key for document in request.prompt.documents))
        return await warm(request, evicting)

    controller.warm = noted
    job = await precomputed(served)
    assert (job["status"], job["documents_done"]) == ("no_room", 5)
    assert job["chunks"] == NOTHING | {"total": 15, "present": 1, "no_room": 14}
    assert tried == donors(0)[:2]


async def test_full_tiers_that_hold_everything_are_no_obstacle(served):
    (tier,) = served.stack.controller.tiers
    served.stack.controller.tiers = (msgspec.structs.replace(tier, used_tokens=1000),)
    holding(served.stack, *(node(f"hash{n}", node(f"hash{n}-1"), node(f"hash{n}-2")) for n in range(5)))
    job = await precomputed(served)
    assert (job["status"], job["chunks"]) == ("completed", NOTHING | {"total": 15, "present": 15})


async def asked(served, **times: int) -> None:
    """Ask queries with so many documents so many times: ``two=3`` asks for two documents three times."""
    for name, count in times.items():
        body = {"query": f"query {name}", "top_k": ["one", "two", "three"].index(name) + 1}
        for _ in range(count):
            assert (await served.client.post("/query", json=body)).status_code == 200


async def test_frequent_sequences_come_first(tmp_path, in_process, stack: Stack):
    async with in_process(data_dir=tmp_path) as served:
        await asked(served, one=1, two=3, three=2)
        job = await precomputed(served, top=2)
    assert (job["queries"], job["resolved"], job["unresolved"]) == (6, 6, 0)
    assert job["sequences"] == NOTHING | {"total": 2, "computed": 2}
    assert computed(stack)[:3] == [("hash0", "hash1"), ("hash0", "hash1", "hash2"), ("hash0",)]
    assert job["chunks"] == NOTHING | {"total": 15, "computed": 15}


async def test_sequences_alone(tmp_path, in_process, stack: Stack):
    async with in_process(data_dir=tmp_path) as served:
        await asked(served, one=2, two=1)
        job = await precomputed(served, top=5, donors=False)
        assert (job["status"], job["documents"], job["chunks"]) == ("completed", 0, NOTHING)
        assert computed(stack) == [("hash0",), ("hash0", "hash1")]
        again = await precomputed(served, top=5, donors=False)
    assert again["sequences"] == NOTHING | {"total": 2, "present": 2}


async def test_sequences_do_not_evict_either(tmp_path, in_process, stack: Stack):
    (tier,) = stack.controller.tiers
    async with in_process(data_dir=tmp_path) as served:
        await asked(served, one=3, two=2, three=1)
        stack.controller.tiers = (msgspec.structs.replace(tier, used_tokens=995),)
        job = await precomputed(served, top=3)
    assert job["status"] == "no_room"
    assert job["sequences"] == NOTHING | {"total": 3, "computed": 1, "no_room": 2}
    # Behind it, the donors that fit.
    assert computed(stack) == [("hash0",), ("hash1",), ("hash2",), ("hash3",), ("hash4",)]


async def test_sequences_are_those_of_the_tenant_and_the_collection(tmp_path, in_process, stack: Stack):
    log = tmp_path / "queries.jsonl"
    owners = [("default", "default"), ("default", "b"), ("acme", "b")]
    stack.retriever.collections |= dict.fromkeys(owners, 5)
    lines = [{"tenant": tenant, "collection": name, "query": f"{tenant} {name}"} for tenant, name in owners]
    log.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    async with in_process(data_dir=tmp_path) as served:
        assert (await precomputed(served, top=9, donors=False))["queries"] == 2
        assert (await precomputed(served, top=9, donors=False, collection="b"))["queries"] == 1
        assert (await precomputed(served, top=9, donors=False, collection="b", tenant="acme"))["queries"] == 1
    assert Counter(request.query for request in stack.retriever.requests).keys() == {
        "default default",
        "default b",
        "acme b",
    }


async def test_a_cancelled_job_is_continued_by_the_next(served):
    stack = served.stack
    computing = asyncio.Event()
    stream = stack.generator.stream

    async def third_waits(plan, sampling):
        if len(stack.controller.warmed) == 3:
            computing.set()
            await asyncio.Event().wait()
        async for step in stream(plan, sampling):
            yield step

    stack.generator.stream = third_waits
    location = await started(served)
    await computing.wait()
    job = (await served.client.delete(location)).json()
    assert (job["status"], job["chunks"]["computed"]) == ("cancelled", 2)
    assert (await served.client.get(location)).json() == job
    assert (await served.client.delete(location)).json() == job, "cancelling twice changes nothing"
    await eventually(lambda: len(stack.controller.reports) == 3 and stack.at_rest)
    assert Counter(report.outcome for report in stack.controller.reports) == {
        PlanOutcome.COMPLETED: 2,
        PlanOutcome.CANCELLED: 1,
    }
    stack.generator.stream = stream
    job = await precomputed(served)
    assert (job["status"], job["chunks"]) == ("completed", NOTHING | {"total": 15, "computed": 13, "present": 2})


async def test_a_job_that_has_ended_stays_as_it_is(served):
    location = await started(served, collection="empty")
    job = await ended(served, location)
    answer = await served.client.delete(location)
    assert (answer.status_code, answer.json()) == (200, job)
    assert job["status"] == "completed"


async def test_one_precomputation_at_a_time_and_only_the_last_is_kept(served):
    served.stack.controller.busy = True
    first = await started(served)
    answer = await served.client.post(PRECOMPUTE, json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
    assert first.rpartition("/")[2] in answer.json()["error"]["message"]
    await served.client.delete(first)
    second = await started(served)
    for method in ("GET", "DELETE"):
        answer = await served.client.request(method, first)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_job")
    assert (await served.client.get(second)).json()["status"] == "in_progress"


async def test_it_shares_idle_time_with_a_warm_up(served):
    """Both are granted plans in turn, and the controller never sees two requests at once."""
    controller = served.stack.controller
    warm, under_way, most = controller.warm, 0, 0

    async def counted(request, evicting):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await warm(request, evicting)
        finally:
            under_way -= 1

    controller.warm = counted
    queries = [{"query": f"query {number}", "top_k": number} for number in (2, 3, 4, 5)]
    warming = (await served.client.post("/v1/admin/cache/warm", json={"queries": queries})).headers["location"]
    location = await started(served)
    assert (await ended(served, location))["chunks"]["computed"] == 15
    assert (await ended(served, warming))["warmed"] == 4
    names = [request.query_id.partition("_")[0] for request in controller.warmed]
    assert most == 1
    assert names.index("donor") < max(place for place, name in enumerate(names) if name == "warm")
    assert names.index("warm") < max(place for place, name in enumerate(names) if name == "donor")


async def test_queries_come_first(live):
    stack = live.stack
    stack.phases.held.add("prefill")
    location = await started(live, collection="default")
    await eventually(lambda: stack.phases.waiting["prefill"] == 1)
    stack.phases.held.clear()
    assert (await live.client.post("/query", json={"query": "x"})).status_code == 200
    job = await ended(live, location)
    assert (job["status"], job["chunks"]["computed"], job["chunks"]["failed"]) == ("completed", 15, 0)
    await eventually(lambda: stack.at_rest and len(stack.controller.reports) == 17)
    assert Counter(report.outcome for report in stack.controller.reports)[PlanOutcome.CANCELLED] == 1


async def test_a_document_that_is_deleted_meanwhile_is_no_failure(served):
    retriever = served.stack.retriever
    chunks = retriever.chunks

    async def gone_by_now(tenant, collection, document_id):
        if document_id == "d2":
            retriever.chunks_of = 1
            await retriever.delete_document(tenant, collection, "d3")
            retriever.chunks_of = 3
        return await chunks(tenant, collection, document_id)

    retriever.chunks = gone_by_now
    job = await precomputed(served, collection="default")
    assert (job["status"], job["documents_done"], job["chunks"]["computed"]) == ("completed", 5, 12)
    assert (job["chunks"]["failed"], job["last_error"]) == (0, None)


async def test_a_dead_engine_fails_one_chunk_only(in_process, stack: Stack):
    # No periodic check: only the failure itself reports the dead engine.
    async with in_process(readiness_interval_s=60) as served:
        stack.phases.held.add("prefill")
        location = await started(served)
        await eventually(lambda: stack.phases.waiting["prefill"] == 1)
        stack.phases.failing.update(prefill=EngineDied("gone"), engine_ready=EngineDied("gone"))
        stack.phases.released["prefill"].set()
        await eventually(lambda: not stack.phases.waiting["prefill"])
        async with asyncio.timeout(10):
            while not (job := (await served.client.get(location)).json())["chunks"]["failed"]:
                await asyncio.sleep(0.002)
        for _ in range(5):
            job = (await served.client.get(location)).json()
            assert (job["status"], job["chunks"]["failed"]) == ("in_progress", 1)
        stack.phases.failing.clear()
        await served.app.state.gateway.readiness.check()
        job = await ended(served, location)
    assert (job["status"], job["chunks"]["failed"], job["chunks"]["computed"]) == ("completed", 1, 14)
    assert job["last_error"]["code"] == "engine_died"


async def test_a_retriever_that_is_away_fails_one_document_only(in_process, stack: Stack, monkeypatch):
    chunks = stack.retriever.chunks

    async def away(tenant, collection, document_id):
        if "retriever_ready" in stack.phases.failing:
            raise Unavailable("away")
        return await chunks(tenant, collection, document_id)

    async with in_process(readiness_interval_s=60) as served:
        monkeypatch.setattr(stack.retriever, "chunks", away)
        stack.phases.failing["retriever_ready"] = RetrieverNotReady("loading")
        location = await started(served, collection="default")
        async with asyncio.timeout(10):
            while not (await served.client.get(location)).json()["chunks"]["failed"]:
                await asyncio.sleep(0.002)
        stack.phases.failing.clear()
        await served.app.state.gateway.readiness.check()
        job = await ended(served, location)
    # The listing says that the document had one chunk.
    assert (job["status"], job["chunks"]["failed"], job["chunks"]["computed"]) == ("completed", 1, 12)
    assert job["last_error"]["code"] == "unavailable"


async def test_nothing_but_failures_is_a_failure(served):
    served.stack.phases.failing["prefill"] = EngineDied("gone")
    job = await precomputed(served)
    assert (job["status"], job["chunks"]) == ("failed", NOTHING | {"total": 15, "failed": 15})
    assert (await by_label(served, "ragtree_ingest_prefills_total"))["failed"] == 15


@pytest.mark.parametrize(("error", "engines"), [(EngineDied("gone"), 3), (EngineFailed("in its step"), 1)])
async def test_a_document_ends_no_engine_after_another(served, error, engines):
    """Each chunk is computed behind the first one of its document."""
    stack = served.stack
    stack.retriever.chunks_of = 3
    stream, poison, computed = stack.generator.stream, chunk(2).content_hash, []

    async def failing(plan, sampling):
        computed.append([document.key for document in plan.prompt.documents])
        if poison in computed[-1]:
            raise error
        async for step in stream(plan, sampling):
            yield step

    stack.generator.stream = failing
    for tried in (engines, 0):
        computed.clear()
        job = await precomputed(served)
        assert sum(poison in keys for keys in computed) == tried
        assert (job["status"], job["chunks"]["failed"]) == ("completed", 3)
    assert job["last_error"]["code"] == "engine_failed"


async def test_an_unknown_collection_fails_the_job(served):
    job = await precomputed(served, collection="nowhere")
    assert (job["status"], job["last_error"]["code"]) == ("failed", "unknown_collection")


async def test_a_defect_fails_the_job_without_details(served):
    served.stack.phases.failing["warm"] = RuntimeError("secret")
    job = await precomputed(served)
    assert (job["status"], job["last_error"]["code"]) == ("failed", "internal_error")
    assert "secret" not in job["last_error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"donors": False},
        {"top": 0},
        {"top": "all"},
        {"collection": "/"},
        {"tenant": ""},
        {"donors": 1},
        {"queries": []},
    ],
)
async def test_invalid_bodies_are_refused(served, body: dict):
    assert (await served.client.post(PRECOMPUTE, json=body)).status_code == 422


async def test_shutdown_cancels_the_job(in_process, stack: Stack):
    stack.phases.held.add("prefill")
    async with in_process() as served:
        await started(served)
        await stack.phases.reached["prefill"].wait()
    assert [report.outcome for report in stack.controller.reports] == [PlanOutcome.CANCELLED]
    assert stack.at_rest
