"""Deletion of documents: their KV is gone before the deletion is confirmed."""

import asyncio

import pytest
from gateway_fakes import Stack, eventually

from gateway.background.forgetting import Forgetting
from gateway.limits.auth import namespace_of
from gateway.settings import GatewaySettings
from protocol.cache import DocumentDeletion
from protocol.documents import Orphan
from protocol.errors import DeadlineExceeded, Unavailable
from protocol.revisions import StoreRevision

HERE = "/v1/collections/default/documents"
DROPPED = DocumentDeletion(("hash1",), namespace_of("default"), StoreRevision("fake", 1))


def orphan(number: int, tenant: str = "acme", store: str = "fake") -> Orphan:
    return Orphan(number, tenant, f"hash{number}", StoreRevision(store, number))


async def test_kv_is_dropped_before_the_deletion_is_confirmed(served):
    served.stack.phases.held.add("drop")
    deleting = asyncio.create_task(served.client.delete(f"{HERE}/d1"))
    await served.stack.phases.reached["drop"].wait()
    assert ("default", "default", "d1") in served.stack.retriever.deleted
    assert not deleting.done()
    served.stack.phases.released["drop"].set()
    answer = await deleting
    assert (answer.status_code, answer.json()["deleted"]) == (200, True)
    assert served.stack.controller.deletions == [DROPPED]


@pytest.mark.parametrize("error", [Unavailable("being restarted"), DeadlineExceeded("a plan uses it")])
async def test_retried_deletion_completes_a_failed_one(served, error):
    served.stack.phases.failing["drop"] = error
    answer = await served.client.delete(f"{HERE}/d1")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, error.code)
    assert "retry-after" in answer.headers
    assert (await served.client.delete(f"{HERE}/d1")).status_code == 503, "still not gone"
    served.stack.phases.failing.clear()
    assert (await served.client.delete(f"{HERE}/d1")).status_code == 404
    assert served.stack.controller.deletions == [DROPPED]


async def test_deletion_is_refused_while_a_part_is_away(served):
    served.stack.phases.failing["controller_ready"] = Unavailable("being restarted")
    await served.app.state.gateway.readiness.check()
    assert (await served.client.delete(f"{HERE}/d1")).status_code == 503
    assert served.stack.retriever.deleted == {}


async def test_unknown_document_drops_nothing(served):
    assert (await served.client.delete(f"{HERE}/none")).status_code == 404
    assert served.stack.controller.deletions == []


async def test_shared_contents_are_kept(served):
    # The retriever does not report shared contents as orphans.
    served.stack.retriever.orphans_of = lambda *_: asyncio.sleep(0, [])
    assert (await served.client.delete(f"{HERE}/d1")).status_code == 200
    assert served.stack.controller.deletions == []


def forgetting(stack: Stack, **settings: float) -> Forgetting:
    return Forgetting(stack.retriever, stack.controller, GatewaySettings(**settings))


async def test_sweep_drops_by_tenant_and_store_and_forgets_dropped_orphans(stack: Stack):
    stack.retriever.orphaned = [orphan(1), orphan(2, "default"), orphan(3), orphan(4, store="other")]
    await forgetting(stack).sweep()
    assert set(stack.controller.deletions) == {
        DocumentDeletion(("hash1", "hash3"), namespace_of("acme"), StoreRevision("fake", 3)),
        DocumentDeletion(("hash2",), namespace_of("default"), StoreRevision("fake", 2)),
        DocumentDeletion(("hash4",), namespace_of("acme"), StoreRevision("other", 4)),
    }
    assert stack.retriever.orphaned == []


async def test_failed_sweep_keeps_its_orphans(stack: Stack):
    stack.retriever.orphaned = [orphan(1)]
    stack.phases.failing["drop"] = Unavailable("away")
    with pytest.raises(Unavailable):
        await forgetting(stack).sweep()
    assert stack.retriever.orphaned == [orphan(1)]


async def test_sweep_waits_for_the_query_timeout(stack: Stack):
    asked: list[float] = []

    async def orphans(older_than_s: float, limit: int) -> list[Orphan]:
        asked.append(older_than_s)
        return []

    stack.retriever.orphans = orphans
    await forgetting(stack, query_timeout_s=7.0).sweep()
    assert asked == [7.0]


async def test_sweeps_run_periodically_and_survive_failures(stack: Stack, in_process):
    stack.retriever.orphaned = [orphan(1)]
    stack.phases.failing["orphans"] = RuntimeError("?")
    async with in_process(query_timeout_s=0.005):
        await stack.phases.reached["orphans"].wait()
        stack.phases.failing.clear()
        await eventually(lambda: stack.retriever.orphaned == [])
    assert stack.controller.deletions == [DocumentDeletion(("hash1",), namespace_of("acme"), StoreRevision("fake", 1))]
