"""Deletion of documents: their KV is gone before the deletion is confirmed."""

import asyncio

import pytest
from gateway_fakes import Stack, eventually
from prometheus_client import CollectorRegistry

from gateway.background.forgetting import Forgetting
from gateway.limits.auth import namespace_of
from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.readiness import Readiness
from gateway.settings import GatewaySettings
from protocol.cache import DocumentDeletion
from protocol.documents import Orphan
from protocol.errors import DeadlineExceeded, EngineNotReady, Unavailable
from protocol.retrieval import StoreRevision

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


async def forgetting(stack: Stack, registry: CollectorRegistry | None = None, **settings: float) -> Forgetting:
    readiness = Readiness(stack, 1.0, 1.0)
    await readiness.check()
    metrics = GatewayMetrics(registry or CollectorRegistry())
    return Forgetting(stack, GatewaySettings(**settings), readiness, metrics)


async def test_sweep_drops_by_tenant_and_store_and_forgets_dropped_orphans(stack: Stack):
    stack.retriever.orphaned = [orphan(1), orphan(2, "default"), orphan(3), orphan(4, store="other")]
    await (await forgetting(stack)).sweep()
    assert set(stack.controller.deletions) == {
        DocumentDeletion(("hash1", "hash3"), namespace_of("acme"), StoreRevision("fake", 3)),
        DocumentDeletion(("hash2",), namespace_of("default"), StoreRevision("fake", 2)),
        DocumentDeletion(("hash4",), namespace_of("acme"), StoreRevision("other", 4)),
    }
    assert stack.retriever.orphaned == []


async def test_failed_sweep_keeps_its_orphans(stack: Stack):
    stack.retriever.orphaned = [orphan(1)]
    stack.phases.failing["drop"] = Unavailable("away")
    await (await forgetting(stack)).sweep()
    assert [(one.number, one.attempts) for one in stack.retriever.orphaned] == [(1, 1)]


async def test_nothing_is_tried_while_a_part_is_away(stack: Stack):
    stack.retriever.orphaned = [orphan(1)]
    stack.phases.failing["engine_ready"] = EngineNotReady("loading")
    await (await forgetting(stack)).sweep()
    assert stack.retriever.orphaned == [orphan(1)]


def poisoned(stack: Stack, content: str, error: BaseException) -> None:
    """Have every deletion of this content fail."""
    delete = stack.controller.delete_document

    async def failing(deletion: DocumentDeletion) -> int:
        # It was counted before.
        assert all(one.attempts for one in stack.retriever.orphaned if one.content_hash in deletion.contents)
        if content in deletion.contents:
            raise error
        return await delete(deletion)

    stack.controller.delete_document = failing


async def test_what_cannot_be_deleted_is_given_up_and_what_is_behind_it_goes_on(stack: Stack):
    stack.retriever.orphaned = [orphan(number) for number in range(1, 6)] + [orphan(6, "default")]
    poisoned(stack, "hash2", Unavailable("the disk is read-only"))
    registry = CollectorRegistry()
    sweeper = await forgetting(stack, registry)
    left = []
    for _ in range(5):
        await sweeper.sweep()
        left.append([one.number for one in stack.retriever.orphaned])
    assert left == [[1, 2, 3, 4, 5], [2], [2], [2], [2]]
    assert stack.retriever.given_up == {2: "the disk is read-only"}
    assert stack.retriever.orphaned[0].attempts == 3
    assert registry.get_sample_value("ragtree_deletions_given_up_total") == 1


async def test_an_attempt_that_ends_with_its_process_counts(stack: Stack):
    stack.retriever.orphaned = [orphan(1), orphan(2)]
    poisoned(stack, "hash1", asyncio.CancelledError())
    for _ in range(3):
        with pytest.raises(asyncio.CancelledError):
            await (await forgetting(stack)).sweep()
    await (await forgetting(stack)).sweep()
    await (await forgetting(stack)).sweep()
    assert [one.number for one in stack.retriever.orphaned] == [1]
    assert stack.retriever.given_up == {1: "its last attempt ended with a process"}


async def test_who_asks_for_a_deletion_again_has_it_tried_again(served):
    stack = served.stack
    stack.phases.failing["drop"] = Unavailable("the disk is read-only")
    assert (await served.client.delete(f"{HERE}/d1")).status_code == 503
    sweeper = served.app.state.gateway.forgetting
    for _ in range(3):
        await sweeper.sweep()
    assert stack.retriever.given_up == {1: "the disk is read-only"}
    stack.phases.failing.clear()
    assert (await served.client.delete(f"{HERE}/d1")).status_code == 404
    assert stack.controller.deletions == [DROPPED]
    assert stack.retriever.orphaned == []


async def test_sweep_waits_for_the_query_timeout(stack: Stack):
    asked: list[float] = []

    async def orphans(older_than_s: float, limit: int) -> list[Orphan]:
        asked.append(older_than_s)
        return []

    stack.retriever.orphans = orphans
    await (await forgetting(stack, query_timeout_s=7.0)).sweep()
    assert asked == [7.0]


async def test_sweeps_run_periodically_and_survive_failures(stack: Stack, in_process):
    stack.retriever.orphaned = [orphan(1)]
    stack.phases.failing["orphans"] = RuntimeError("?")
    async with in_process(query_timeout_s=0.005):
        await stack.phases.reached["orphans"].wait()
        stack.phases.failing.clear()
        await eventually(lambda: stack.retriever.orphaned == [])
    assert stack.controller.deletions == [DocumentDeletion(("hash1",), namespace_of("acme"), StoreRevision("fake", 1))]
