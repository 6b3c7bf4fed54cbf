"""Loads ahead: what waiting requests find in slower tiers is loaded before their turn, whatever the engine computes."""

import asyncio
from functools import partial

import pytest
from controller_under_test import TOKENS, Clock, ask, checked_controllers, fill, report, sources
from prefetch_cases import Engine, gives_up, overdue, settled

from protocol.errors import EngineDied
from protocol.generation import PrefillResult, StepBudget
from protocol.tiers import Tier

GPU, HOST, DISK = Tier
STEP = StepBudget(40, 30)
LOADED = PrefillResult(2 * TOKENS, 2 * TOKENS, 1.0, loaded={HOST: 2 * TOKENS})
"""The load of two documents."""


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def build(engine):
    with checked_controllers(Clock(), executor=engine, max_running=1, prepare_after_s=0.0) as build:
        yield partial(build, step=STEP, host=1000, policy="LRU")


async def busy(controller, query_id: str = "runs") -> None:
    """A query whose prefill takes the whole step, and nothing of the tiers."""
    await controller.admit(ask(query_id, "", question=STEP.tokens))


async def test_documents_are_loaded_while_another_prefill_takes_the_step(build, engine):
    controller = build(gpu=2 * TOKENS)
    await fill(controller, "ab", "cd")
    await busy(controller)
    task = await overdue(controller, ask("waits", "ab"))
    (plan,) = engine.plans
    assert (plan.speculative, sources(plan)) == (True, [HOST, HOST])
    # Without its question, it computes nothing.
    assert plan.prompt.segments == ask("waits", "ab").prompt.prefix
    await engine.end(LOADED)
    await controller.complete(report("runs"))
    plan = await task
    assert (sources(plan), plan.ends) == ([GPU, GPU], ())
    assert (await controller.stats()).prepared_tokens == LOADED.prompt_tokens
    await controller.complete(report("waits"))


async def test_only_what_lies_in_a_tier_is_loaded(build, engine):
    controller = build(gpu=2 * TOKENS)
    await fill(controller, "ab", "cd")
    await busy(controller)
    tasks = [await overdue(controller, ask("lacks all", "x")), await overdue(controller, ask("waits", "abx"))]
    assert engine.prefetched == ["ab"]
    await engine.end(LOADED)
    # What is left is to be computed, and the step has no room.
    assert engine.prefetched == ["ab"]
    for task in tasks:
        await gives_up(task)
    await controller.complete(report("runs"))


async def test_one_load_runs_at_a_time_for_the_request_whose_turn_is_next(build, engine):
    controller = build(gpu=4 * TOKENS)
    await fill(controller, "a", "bc", "de", "fg")
    await busy(controller)
    tasks = [await overdue(controller, ask("later", "axyz")), await overdue(controller, ask("next", "bc"))]
    assert engine.prefetched == ["a"]
    tasks.append(await overdue(controller, ask("too", "bc", question=20)))
    assert engine.prefetched == ["a"]
    await engine.end(PrefillResult(TOKENS, TOKENS, 1.0, loaded={HOST: TOKENS}))
    assert engine.prefetched == ["a", "bc"]
    await engine.end(LOADED)
    # The third finds the same documents in the GPU.
    assert engine.prefetched == ["a", "bc"]
    for task in tasks:
        await gives_up(task)
    await controller.complete(report("runs"))


async def test_a_load_evicts_nothing_that_a_waiting_request_needs(build, engine):
    controller = build(gpu=2 * TOKENS)
    await fill(controller, "ab", "cd")
    await busy(controller)
    tasks = [await overdue(controller, ask("finds", "cd")), await overdue(controller, ask("lacks", "ab"))]
    assert engine.plans == []
    await gives_up(tasks[0])
    # Nobody waits for it any more.
    await controller.prefilled("runs")
    await settled()
    assert engine.prefetched == ["ab"]
    await gives_up(tasks[1])
    await controller.complete(report("runs"))


async def test_a_load_evicts_nothing_that_a_running_request_uses(build, engine):
    controller = build(gpu=2 * TOKENS)
    await fill(controller, "ab", "cd")
    await controller.admit(ask("runs", "cd", question=STEP.tokens))
    task = await overdue(controller, ask("waits", "ab"))
    assert engine.plans == []
    await gives_up(task)
    await controller.complete(report("runs"))


async def test_a_load_is_cancelled_with_its_request(build, engine):
    controller = build(gpu=2 * TOKENS)
    await fill(controller, "ab", "cd")
    await busy(controller)
    task = await overdue(controller, ask("waits", "ab"))
    await gives_up(task)
    assert engine.cancelled == engine.plans
    assert len(engine.plans) == 1
    assert list(controller._scheduler.tree.grants.open) == ["runs"]
    await controller.complete(report("runs"))
    assert controller.idle


async def test_a_turn_waits_for_the_end_of_its_load(build, engine):
    controller = build(gpu=2 * TOKENS)
    await fill(controller, "ab", "cd")
    await busy(controller)
    task = await overdue(controller, ask("waits", "ab"))
    await controller.complete(report("runs"))
    await settled()
    assert not task.done()
    await engine.end(LOADED)
    assert sources(await task) == [GPU, GPU]
    assert engine.cancelled == []
    await controller.complete(report("waits"))


async def test_a_load_that_fails_is_not_tried_again(build, engine):
    controller = build(gpu=2 * TOKENS)
    await fill(controller, "ab", "cd")
    await busy(controller)
    task = await overdue(controller, ask("waits", "ab"))
    await engine.fail(EngineDied("the engine's process is gone"))
    assert engine.prefetched == ["ab"]
    await controller.complete(report("runs"))
    assert sources(await task) == [HOST, HOST]
    await controller.complete(report("waits"))


async def test_a_load_counts_no_access(build, engine):
    """The request's turn does. Otherwise what waits would look twice as popular as what does not."""
    controller = build(gpu=2 * TOKENS)
    await fill(controller, "ab", "cd")
    nodes = controller._scheduler.tree.registry.nodes.values()
    before = {node.key: node.accesses for node in nodes}
    await busy(controller)
    task = await overdue(controller, ask("waits", "ab"))
    await engine.end(LOADED)
    assert {node.key: node.accesses for node in nodes} == before
    await controller.complete(report("runs"))
    await task
    assert {node.key: node.accesses for node in nodes} != before
    await controller.complete(report("waits"))


@pytest.mark.parametrize("changes", [{"prepare_after_s": None}, {"prepare_after_s": 60.0}, {"max_running": 2}])
async def test_nothing_is_loaded_for_requests_that_wait_too_shortly_or_not_at_all(build, engine, changes):
    controller = build(gpu=2 * TOKENS, **changes)
    await fill(controller, "ab", "cd")
    await controller.admit(ask("runs", "", question=10))
    task = asyncio.create_task(controller.admit(ask("waits", "ab")))
    await settled()
    assert engine.plans == []
    await controller.complete(report("runs"))
    await task
    await controller.complete(report("waits"))
