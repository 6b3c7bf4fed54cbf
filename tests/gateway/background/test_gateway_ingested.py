"""Ingested documents are prefilled in idle time, each chunk behind the first one, while the tiers have room."""

import asyncio

import msgspec
import pytest
from gateway_fakes import Stack, chunk, eventually
from gateway_requests import by_label

from gateway.background import donors, idle
from protocol.cache import TierStats
from protocol.documents import DocumentPage
from protocol.errors import EngineDied, EngineNotReady, Unavailable
from protocol.plans import Reuse
from protocol.tiers import Tier

DOCUMENT = "/v1/collections/default/documents/d3"
TEXT = {"content": "some text", "headers": {"Content-Type": "text/plain"}}
NOTHING = {"computed": 0, "present": 0, "no_room": 0, "failed": 0}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(idle, "_FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(idle, "_LONGEST_WAIT_S", 0.005)
    monkeypatch.setattr(donors, "_POLL_S", 0.001)


@pytest.fixture
async def prefilling(in_process, stack: Stack):
    """A gateway that prefills what is ingested, with room for a thousand tokens. Its documents have three chunks."""
    stack.controller.tiers = (TierStats(Tier.GPU, "a", 1000, 0, 0, 0, 0, "gpu@a"),)
    stack.retriever.chunks_of, stack.retriever.job_status = 3, "completed"
    async with in_process(prefill_ingested=True) as served:
        yield served


async def counted(served, **expected: int) -> None:
    """Wait until so many chunks have been tried, and compare the outcomes."""
    async with asyncio.timeout(10):
        while sum((found := await by_label(served, "ragtree_ingest_prefills_total")).values()) < sum(expected.values()):
            await asyncio.sleep(0.002)
    assert found == NOTHING | expected


def prefilled(stack: Stack) -> list[list[str]]:
    return [[segment.key for segment in request.prompt.segments] for request in stack.controller.warmed]


async def test_each_chunk_is_computed_behind_the_first_one(prefilling):
    await prefilling.client.put(DOCUMENT, **TEXT)
    await counted(prefilling, computed=3)
    system, first = "system", chunk(3).content_hash
    assert prefilled(prefilling.stack) == [
        [system, first],
        [system, first, f"{first}-1"],
        [system, first, f"{first}-2"],
    ]
    assert {request.reuse for request in prefilling.stack.controller.warmed} == {Reuse.EXACT}


async def test_a_batch_prefills_what_was_stored_since_it_began(prefilling, monkeypatch):
    retriever = prefilling.stack.retriever
    listed = retriever.list_documents

    async def pages(*args) -> DocumentPage:
        page = await listed(*args)
        older = [msgspec.structs.replace(info, updated_at=0.5) for info in page.documents[:3]]
        return msgspec.structs.replace(page, documents=(*older, *page.documents[3:]))

    monkeypatch.setattr(retriever, "list_documents", pages)
    line = {"content": '{"id": "x", "text": "t"}\n', "headers": {"Content-Type": "application/x-ndjson"}}
    await prefilling.client.post("/v1/collections/default/documents:batch", **line)
    await counted(prefilling, computed=6)
    assert {path[1] for path in prefilled(prefilling.stack)} == {"hash3", "hash4"}


async def test_what_is_there_is_not_computed(prefilling):
    prefilling.stack.controller.present = {("hash3",), ("hash3", "hash3-1"), ("hash3", "hash3-2")}
    await prefilling.client.put(DOCUMENT, **TEXT)
    await counted(prefilling, present=3)


async def test_nothing_is_evicted_for_it(prefilling):
    (tier,) = prefilling.stack.controller.tiers
    prefilling.stack.controller.tiers = (msgspec.structs.replace(tier, used_tokens=995),)
    await prefilling.client.put(DOCUMENT, **TEXT)
    # The first chunk has 2 + 3 tokens with the system prompt, the others have 8.
    await counted(prefilling, computed=1, no_room=2)


async def test_it_waits_for_its_job_while_the_retriever_is_away(prefilling):
    retriever, phases = prefilling.stack.retriever, prefilling.stack.phases
    phases.failing["get_job"] = Unavailable("away")
    retriever.job_status = "in_progress"
    await prefilling.client.put(DOCUMENT, **TEXT)
    await phases.reached["get_job"].wait()
    del phases.failing["get_job"]
    phases.reached["get_job"].clear()
    await phases.reached["get_job"].wait()
    assert prefilled(prefilling.stack) == []
    retriever.job_status = "completed"
    await counted(prefilling, computed=3)


async def test_a_document_that_is_gone_or_fails_does_not_stop_the_next(prefilling):
    phases = prefilling.stack.phases
    await prefilling.client.put(DOCUMENT.replace("d3", "d9"), **TEXT)
    await counted(prefilling, failed=1)
    phases.failing["warm"] = EngineNotReady("loading")
    await prefilling.client.put(DOCUMENT, **TEXT)
    await counted(prefilling, failed=4)
    del phases.failing["warm"]
    await prefilling.client.put(DOCUMENT, **TEXT)
    await counted(prefilling, failed=4, computed=3)


async def test_a_failed_job_has_nothing_to_prefill(prefilling):
    retriever, phases = prefilling.stack.retriever, prefilling.stack.phases
    retriever.job_status = "failed"
    phases.held.add("get_job")
    await prefilling.client.put(DOCUMENT, **TEXT)
    await eventually(lambda: bool(phases.waiting["get_job"]))
    phases.released["get_job"].set()
    await eventually(lambda: not phases.waiting["get_job"])
    retriever.job_status = "completed"
    await prefilling.client.put(DOCUMENT.replace("d3", "d4"), **TEXT)
    await counted(prefilling, computed=3)
    assert {path[1] for path in prefilled(prefilling.stack)} == {"hash4"}


async def test_it_is_off_by_default(in_process, stack):
    async with in_process() as served:
        await served.client.put(DOCUMENT, **TEXT)
        await served.client.post("/query", json={"query": "Which one?"})
        assert stack.controller.warmed == []


async def test_a_prefill_that_ends_its_engine_each_time_is_given_up_and_others_go_on(prefilling):
    stack = prefilling.stack
    stream, poison, tried = stack.generator.stream, f"{chunk(3).content_hash}-1", []

    async def dying(plan, sampling):
        if poison in [document.key for document in plan.prompt.documents]:
            tried.append(plan.query_id)
            raise EngineDied("the engine is gone")
        async for step in stream(plan, sampling):
            yield step

    stack.generator.stream = dying
    for number in range(1, 6):
        await prefilling.client.put(DOCUMENT, **TEXT)
        # The first upload computes the chunks before and behind it.
        await counted(prefilling, failed=number, computed=2, present=2 * (number - 1))
    assert len(tried) == 3


async def test_a_defect_does_not_end_the_prefills_behind_it(prefilling, monkeypatch):
    retriever = prefilling.stack.retriever
    chunks = retriever.chunks
    failing = [RuntimeError("a defect")]

    async def defective(*names: str):
        if failing:
            raise failing.pop()
        return await chunks(*names)

    monkeypatch.setattr(retriever, "chunks", defective)
    await prefilling.client.put(DOCUMENT, **TEXT)
    await prefilling.client.put(DOCUMENT, **TEXT)
    await counted(prefilling, computed=3)
