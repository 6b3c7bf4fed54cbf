"""Leases that expire, and requests that are refused without any effect."""

import pytest
from controller_under_test import LEASE_S, TOKENS, ask, fill, key, report, sources, state, used, waiting

from protocol.errors import InvalidRequest, Overloaded, UnknownNode, UnknownPlan
from protocol.kv import LostCopy
from protocol.plans import PlanOutcome
from protocol.tiers import Tier

GPU, HOST, DISK = Tier


async def test_an_expired_lease_frees_all_that_it_held(controller, clock):
    await fill(controller, "a")
    before = (await controller.tree(9, 1000)).namespaces["tenant"][0]
    await controller.admit(ask("lost", "ab"))
    clock.now = LEASE_S - 0.1
    controller.expire_leases()
    assert (await controller.stats()).running == 1
    assert (await controller.tree(9, 1000)).namespaces["tenant"][0].locked
    clock.now = LEASE_S
    controller.expire_leases()
    stats = await controller.stats()
    assert (stats.expired, stats.running) == (1, 0)
    after = (await controller.tree(9, 1000)).namespaces["tenant"][0]
    assert (after.locked, after.children) == (before.locked, before.children) == (False, ())
    assert await used(controller) == {(GPU, "one"): TOKENS}


async def test_a_new_query_takes_the_slot_of_an_expired_lease(controller, clock):
    await controller.admit(ask("lost", "a"))
    clock.now = LEASE_S
    plan = await controller.admit(ask("next", "a"))
    assert sources(plan) == [None]
    assert (await controller.stats()).running == 1


async def test_a_waiting_query_takes_the_slot_of_an_expired_lease_for_a_whole_lease(controller, clock):
    await controller.admit(ask("lost"))
    task = await waiting(controller, ask("patient"))
    clock.now = LEASE_S
    controller.expire_leases()
    assert (await task).queued_ms == LEASE_S * 1000
    clock.now = 2 * LEASE_S - 0.1
    controller.expire_leases()
    assert (await controller.stats()).running == 1
    clock.now = 2 * LEASE_S
    controller.expire_leases()
    assert ((await controller.stats()).running, (await controller.stats()).expired) == (0, 2)


async def test_a_wait_does_not_expire(controller, clock):
    await controller.admit(ask("runs"))
    task = await waiting(controller, ask("patient"))
    clock.now = LEASE_S / 2
    await controller.complete(report("runs"))
    await controller.complete(report((await task).query_id))
    await controller.admit(ask("runs"))
    task = await waiting(controller, ask("patient"))
    clock.now = LEASE_S
    controller.expire_leases()
    assert ((await controller.stats()).expired, (await controller.stats()).queued) == (0, 1)
    await controller.complete(report("runs"))
    await task


async def test_a_report_after_the_end_of_its_lease_is_refused_and_not_counted(controller, clock):
    await controller.admit(ask("lost", "a"))
    clock.now = LEASE_S
    controller.expire_leases()
    before = await state(controller)
    with pytest.raises(UnknownPlan):
        await controller.complete(report("lost", computed=11))
    assert await state(controller) == before


# Refusals


async def test_queries_beyond_the_queue_are_refused_at_once_and_counted(controller):
    await controller.admit(ask("runs"))
    task = await waiting(controller, ask("waits"))
    before = await controller.tree(9, 1000)
    for query_id in "ab":
        with pytest.raises(Overloaded, match="1 queries are running and 1 waiting"):
            await controller.admit(ask(query_id, "a"))
    stats = await controller.stats()
    assert (stats.rejected, stats.running, stats.queued) == (2, 1, 1)
    assert await controller.tree(9, 1000) == before
    await controller.complete(report("runs"))
    await task


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (report("unknown"), UnknownPlan),
        (report("ended"), UnknownPlan),
        (report("runs", lost=(LostCopy(key("a"), GPU), LostCopy("0", GPU))), UnknownNode),
        (report("runs", lost=(LostCopy(key("a")[1:], GPU),)), UnknownNode),
        (report("runs", lost=(LostCopy("not hexadecimal", GPU),)), UnknownNode),
        (report("runs", lost=(LostCopy("é" * 32, GPU),)), UnknownNode),
        (report("runs", PlanOutcome.FAILED, computed=0, lost=(LostCopy("x", GPU),)), UnknownNode),
        (report("waits", PlanOutcome.CANCELLED, computed=0, lost=(LostCopy("x", GPU),)), UnknownNode),
    ],
    ids=[
        "unknown query",
        "completed twice",
        "one good and one broken key",
        "half a key",
        "not hexadecimal",
        "not ASCII",
        "broken key, failed",
        "broken key, waiting",
    ],
)
async def test_an_invalid_report_is_refused_and_changes_nothing(build, refused, error):
    controller = build()
    await fill(controller, "x")
    await controller.admit(ask("ended", "y"))
    await controller.complete(report("ended"))
    await controller.admit(ask("runs", "ab"))
    task = await waiting(controller, ask("waits", "a"))
    before = await state(controller)
    with pytest.raises(error):
        await controller.complete(refused)
    assert await state(controller) == before
    assert not task.done()
    await controller.complete(report("runs"))
    await controller.complete(report((await task).query_id))


async def test_a_running_query_is_not_admitted_again(controller):
    await controller.admit(ask("twice", "a"))
    before = await state(controller)
    with pytest.raises(InvalidRequest, match="twice"):
        await controller.admit(ask("twice", "b"))
    assert await state(controller) == before
    await controller.complete(report("twice"))
    assert sources(await controller.admit(ask("twice", "a"))) == [GPU]
