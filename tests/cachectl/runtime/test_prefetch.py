"""Prefetches: what waiting requests lack is loaded and computed before their turn comes."""

import asyncio
from functools import partial

import pytest
from controller_integrity import check_integrity
from controller_under_test import (
    TOKENS,
    Clock,
    ask,
    at,
    cached,
    checked_controllers,
    fill,
    key,
    report,
    sources,
    waiting,
)
from prefetch_cases import Engine, decoding, gives_up, overdue, settled

from protocol.cache import DocumentDeletion
from protocol.errors import EngineDied, Overloaded
from protocol.generation import PrefillResult, StepBudget
from protocol.kv import LostCopy
from protocol.plans import PlanOutcome
from protocol.tiers import Tier

GPU, HOST, DISK = Tier
STEP = StepBudget(40, 30)
WHOLE = PrefillResult(2 * TOKENS + 1, 0, 1.0)
"""The prefill of two documents and a question."""


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def build(engine):
    with checked_controllers(Clock(), executor=engine, max_running=1, prepare_after_s=0.0) as build:
        yield partial(build, step=STEP)


async def test_a_waiting_request_finds_what_was_prefetched(build, engine):
    controller = build()
    await decoding(controller, "runs")
    task = await overdue(controller, ask("waits", "ab"))
    (plan,) = engine.plans
    assert (plan.speculative, plan.prompt, sources(plan)) == (True, ask("waits", "ab").prompt, [None, None])
    await engine.end(WHOLE)
    await controller.complete(report("runs"))
    plan = await task
    assert (sources(plan), plan.ends) == ([GPU, GPU], ())
    assert (await controller.stats()).prepared_tokens == WHOLE.prompt_tokens
    await controller.complete(report("waits"))


async def test_documents_in_slower_tiers_are_loaded_to_the_gpu(build, engine):
    controller = build(gpu=2 * TOKENS, host=1000, policy="LRU")
    await fill(controller, "ab", "cd")
    await decoding(controller, "runs", "")
    task = await overdue(controller, ask("waits", "ab"))
    (plan,) = engine.plans
    assert sources(plan) == [HOST, HOST]
    await engine.end(PrefillResult(2 * TOKENS + 1, 2 * TOKENS, 1.0, loaded={HOST: 2 * TOKENS}))
    await controller.complete(report("runs"))
    assert sources(await task) == [GPU, GPU]
    assert (await controller.stats()).prepared_tokens == 2 * TOKENS + 1
    await controller.complete(report("waits"))


async def test_a_turn_waits_for_the_end_of_its_prefetch(build, engine):
    """The prefetch does what the turn would do, so nothing is computed twice and all of it is kept."""
    controller = build()
    await decoding(controller, "runs")
    task = await overdue(controller, ask("waits", "ab"))
    assert engine.prefetched == ["ab"]
    await controller.complete(report("runs"))
    await settled()
    assert not task.done()
    await engine.end(WHOLE)
    plan = await task
    assert (sources(plan), plan.ends) == ([GPU, GPU], ())
    await controller.complete(report("waits"))
    assert await cached(controller, "ab") == [GPU, GPU]


async def test_a_prefetch_gives_way_to_a_request_and_continues_later(build, engine):
    controller = build(max_running=2)
    await decoding(controller, "runs")
    await decoding(controller, "too")
    task = await overdue(controller, ask("waits", "ab"))
    more = await waiting(controller, ask("goes past", "x"))
    await controller.complete(report("too"))
    plan = await more
    assert plan.ends == ()
    await controller.complete(report("goes past"))
    other = await controller.admit(ask("large", "xef"))
    assert other.ends == (engine.plans[0].query_id,)
    await engine.end(PrefillResult(TOKENS, 0, 1.0, lost=(LostCopy(key("ab"), GPU),)))
    assert not task.done()
    await controller.prefilled("large")
    await settled()
    assert engine.prefetched == ["ab", "ab"]
    assert sources(engine.plans[1]) == [GPU, None]
    await engine.end(WHOLE)
    await controller.complete(report("large"))
    assert sources(await task) == [GPU, GPU]
    await controller.complete(report("waits"))
    await controller.complete(report("runs"))


async def test_every_prefetch_has_a_plan_id_of_its_own(build, engine):
    controller = build()
    await decoding(controller, "runs")
    task = await overdue(controller, ask("waits", "ab"))
    for _ in range(2):
        await engine.end(None)
    await gives_up(task)
    await controller.complete(report("runs"))
    assert len({plan.query_id for plan in engine.plans} | {"runs", "waits"}) == len(engine.plans) + 2 == 5


async def test_a_prefetch_whose_first_token_is_overdue_delays_no_request(build, engine):
    clock = Clock()
    with checked_controllers(clock, executor=engine, max_running=1, prepare_after_s=0.0, first_token_s=5.0) as make:
        controller = make(step=STEP)
        await decoding(controller, "runs")
        task = await overdue(controller, ask("waits", "ab"))
        await controller.complete(report("runs"))
        clock.now = 6.0
        controller.expire_leases()
        await settled()
        assert task.done()
        await engine.end(None)
        await controller.complete(report("waits"))


async def test_a_document_that_is_being_deleted_is_not_prefetched(build, engine):
    controller = build()
    await controller.admit(ask("runs", "xy"))
    task = await overdue(controller, ask("waits", "ab", found_at=at(0)))
    deleting = asyncio.create_task(controller.delete_document(DocumentDeletion(("a",), None, *at(1))))
    await settled()
    await controller.prefilled("runs")
    await settled()
    assert engine.plans == []
    await gives_up(task)
    await controller.complete(report("runs"))
    await deleting


async def test_a_prefetch_is_cancelled_with_its_request(build, engine):
    controller = build()
    await decoding(controller, "runs")
    task = await overdue(controller, ask("waits", "ab"))
    await gives_up(task)
    assert engine.cancelled == engine.plans
    await controller.complete(report("runs"))
    assert controller.idle
    check_integrity(controller)
    assert not controller._scheduler.tree.grants.open


async def test_a_prefetch_that_is_cancelled_before_its_first_step_leaves_nothing(build, engine):
    controller = build()
    await decoding(controller, "runs")
    task = await waiting(controller, ask("waits", "ab"))
    # The timer's callback makes the grant. The prefetch's task has not run by then.
    while len(controller._scheduler.tree.grants.open) == 1:
        await asyncio.sleep(0)
    assert engine.plans == []
    await gives_up(task)
    assert list(controller._scheduler.tree.grants.open) == ["runs"]
    await controller.complete(report("runs"))


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("a prefill takes the step", {}),
        ("no request waits", {"max_running": 2}),
        ("prefetching is switched off", {"prepare_after_s": None}),
        ("the request has not waited long enough", {"prepare_after_s": 60.0}),
        ("nothing could be kept", {"gpu": 0}),
    ],
)
async def test_nothing_is_prefetched_if(build, engine, reason, changes):
    controller = build(**changes)
    await controller.admit(ask("runs", "xy"))
    if reason != "a prefill takes the step":
        await controller.prefilled("runs")
    task = asyncio.create_task(controller.admit(ask("waits", "ab")))
    await settled()
    assert engine.plans == []
    await controller.complete(report("runs"))
    await task
    await controller.complete(report("waits"))


async def test_a_prefetch_starts_as_soon_as_the_step_is_free(build, engine):
    controller = build()
    await controller.admit(ask("runs", "xy"))
    task = await overdue(controller, ask("waits", "ab"))
    assert engine.plans == []
    await controller.prefilled("runs")
    await settled()
    assert engine.prefetched == ["ab"]
    await gives_up(task)
    await controller.complete(report("runs"))


async def test_prefetches_run_one_after_another_the_longest_waiting_first(build, engine):
    controller = build()
    await decoding(controller, "runs")
    tasks = [await overdue(controller, ask(query_id, query_id)) for query_id in "abc"]
    for prefetched in ("a", "ab"):
        assert engine.prefetched == list(prefetched)
        await engine.end(PrefillResult(TOKENS + 1, 0, 1.0))
    assert engine.prefetched == list("abc")
    await engine.end(None)
    for task in tasks:
        await gives_up(task)
    await controller.complete(report("runs"))


async def test_what_the_gpu_holds_is_not_prefetched(build, engine):
    controller = build()
    await fill(controller, "ab")
    await decoding(controller, "runs")
    task = await overdue(controller, ask("waits", "ab"))
    assert engine.plans == []
    await gives_up(task)
    await controller.complete(report("runs"))


async def test_a_prefetch_that_fails_costs_its_request_nothing_else(build, engine):
    controller = build()
    await decoding(controller, "runs")
    task = await overdue(controller, ask("waits", "ab"))
    await engine.fail(EngineDied("the engine's process is gone"))
    await controller.complete(report("runs"))
    assert sources(await task) == [None, None]
    await controller.complete(report("waits"))
    assert (await controller.stats()).prepared_tokens == 0


async def test_a_prefetch_that_ended_with_its_instance_is_not_completed_again(build, engine):
    controller = build()
    await decoding(controller, "runs")
    task = await overdue(controller, ask("waits", "ab"))
    controller.instances.restart("one", "reboot", [])
    await engine.end(WHOLE)
    assert sources(await task) == [None, None]
    assert (await controller.stats()).prepared_tokens == 0
    await controller.complete(report("waits"))


async def test_a_request_that_was_refused_is_not_prefetched(build, engine):
    controller = build(max_queued=1)
    await decoding(controller, "runs")
    task = await waiting(controller, ask("waits", ""))
    with pytest.raises(Overloaded):
        await controller.admit(ask("refused", "ab"))
    await settled()
    assert engine.plans == []
    await gives_up(task)
    await controller.complete(report("runs", PlanOutcome.COMPLETED))
