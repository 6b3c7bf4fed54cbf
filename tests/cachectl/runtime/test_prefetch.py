"""What requests that wait for long lack is prefilled ahead of their turns, in room that nobody else has a use for."""

import asyncio
from functools import partial

import pytest
from controller_under_test import TOKENS, Clock, ask, cached, checked_controllers, fill, key, report, sources, waiting

from protocol.cache import DocumentDeletion
from protocol.errors import EngineDied, Overloaded
from protocol.generation import PrefillResult, StepBudget
from protocol.kv import LostCopy
from protocol.plans import PlanOutcome, PrefillPlan
from protocol.tiers import Tier

GPU, HOST, DISK = Tier
STEP = StepBudget(40, 30)
WHOLE = PrefillResult(2 * TOKENS + 1, 0, 1.0)


class Engine:
    """Executor that prefill when they are told to, and note what they were asked."""

    def __init__(self) -> None:
        self.plans: list[PrefillPlan] = []
        self.cancelled: list[str] = []
        self._ends: dict[str, asyncio.Future[PrefillResult | None]] = {}

    async def prefill(self, plan: PrefillPlan) -> PrefillResult | None:
        self.plans.append(plan)
        self._ends[plan.query_id] = asyncio.get_running_loop().create_future()
        try:
            return await self._ends[plan.query_id]
        except asyncio.CancelledError:
            self.cancelled.append(plan.query_id)
            raise

    async def carry_out(self, instance, orders):
        return ()

    @property
    def asked(self) -> list[str]:
        return [plan.query_id for plan in self.plans]

    async def end(self, plan_id: str, prefill: PrefillResult | None) -> None:
        self._ends[plan_id].set_result(prefill)
        await settled()

    async def fail(self, plan_id: str, error: Exception) -> None:
        self._ends[plan_id].set_exception(error)
        await settled()


async def settled() -> None:
    """All that is ready to happen has happened, timers that are due included."""
    for _ in range(20):
        await asyncio.sleep(0)


async def decoding(controller, query_id: str, documents: str = "x") -> None:
    """A query that has its first token: it takes a cache, and nothing of the engine's steps."""
    await controller.admit(ask(query_id, documents))
    await controller.prefilled(query_id)


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def build(engine):
    with checked_controllers(Clock(), executor=engine, max_running=1, prepare_after_s=0.0) as build:
        yield partial(build, step=STEP)


async def overdue(controller, request):
    """A task that waits for its query's turn for longer than it should."""
    task = await waiting(controller, request)
    await settled()
    return task


async def test_what_a_waiting_request_lacks_is_computed_and_found_when_its_turn_comes(build, engine):
    controller = build()
    await decoding(controller, "runs")
    task = await overdue(controller, ask("waits", "ab"))
    (plan,) = engine.plans
    assert (plan.speculative, plan.prompt, sources(plan)) == (True, ask("waits", "ab").prompt, [None, None])
    await engine.end(plan.query_id, WHOLE)
    await controller.complete(report("runs"))
    plan = await task
    assert (sources(plan), plan.ends) == ([GPU, GPU], ())
    assert (await controller.stats()).prepared_tokens == WHOLE.prompt_tokens
    await controller.complete(report("waits"))


async def test_what_lies_in_slower_tiers_is_brought_to_the_gpu(build, engine):
    controller = build(gpu=2 * TOKENS, host=1000, policy="LRU")
    await fill(controller, "ab", "cd")
    await decoding(controller, "runs", "")
    task = await overdue(controller, ask("waits", "ab"))
    (plan,) = engine.plans
    assert sources(plan) == [HOST, HOST]
    await engine.end(plan.query_id, PrefillResult(2 * TOKENS + 1, 2 * TOKENS, 1.0, loaded={HOST: 2 * TOKENS}))
    await controller.complete(report("runs"))
    assert sources(await task) == [GPU, GPU]
    assert (await controller.stats()).prepared_tokens == 2 * TOKENS + 1
    await controller.complete(report("waits"))


async def test_the_turn_comes_when_what_is_under_way_for_it_has_ended(build, engine):
    """It does what the turn would do, so nothing is computed twice, and all of it is kept."""
    controller = build()
    await decoding(controller, "runs")
    task = await overdue(controller, ask("waits", "ab"))
    (begun,) = engine.asked
    await controller.complete(report("runs"))
    await settled()
    assert not task.done()
    await engine.end(begun, WHOLE)
    plan = await task
    assert (sources(plan), plan.ends) == ([GPU, GPU], ())
    await controller.complete(report("waits"))
    assert await cached(controller, "ab") == [GPU, GPU]


async def test_it_gives_way_to_a_request_and_goes_on_later(build, engine):
    controller = build(max_running=2)
    await decoding(controller, "runs")
    await decoding(controller, "too")
    task = await overdue(controller, ask("waits", "ab"))
    more = await waiting(controller, ask("goes past", "x"))
    await controller.complete(report("too"))
    plan = await more
    assert plan.ends == ()
    await controller.complete(report("goes past"))
    other = await controller.admit(ask("large", "xefg"))
    assert other.ends == ("waits~ahead",)
    await engine.end("waits~ahead", PrefillResult(TOKENS, 0, 1.0, lost=(LostCopy(key("ab"), GPU),)))
    assert not task.done()
    await controller.prefilled("large")
    await settled()
    assert engine.asked == ["waits~ahead", "waits~ahead"]
    assert sources(engine.plans[1]) == [GPU, None]
    await engine.end("waits~ahead", WHOLE)
    await controller.complete(report("large"))
    assert sources(await task) == [GPU, GPU]
    await controller.complete(report("waits"))
    await controller.complete(report("runs"))


async def test_one_whose_first_token_is_overdue_keeps_nobody_waiting(build, engine):
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
        await engine.end("waits~ahead", None)
        await controller.complete(report("waits"))


async def test_nothing_is_prepared_of_what_is_being_deleted(build, engine):
    controller = build()
    await controller.admit(ask("runs", "xy"))
    task = await overdue(controller, ask("waits", "ab", searched_at=0.0))
    deleting = asyncio.create_task(controller.delete_document(DocumentDeletion(("a",), None)))
    await settled()
    await controller.prefilled("runs")
    await settled()
    assert engine.plans == []
    task.cancel()
    await settled()
    await controller.complete(report("runs"))
    await deleting


async def test_a_client_that_leaves_takes_it_along(build, engine):
    controller = build()
    await decoding(controller, "runs")
    task = await overdue(controller, ask("waits", "ab"))
    task.cancel()
    await settled()
    assert engine.cancelled == engine.asked
    await controller.complete(report("runs"))
    assert controller.idle
    controller.check_integrity()
    assert not controller._scheduler.tree.grants.open


async def test_cancelled_before_its_first_step_it_leaves_nothing_either(build, engine):
    controller = build()
    await decoding(controller, "runs")
    task = await waiting(controller, ask("waits", "ab"))
    # The timer's own turn of the loop begins it, and nothing of it has run by then.
    while "waits~ahead" not in controller._scheduler.tree.grants.open:
        await asyncio.sleep(0)
    task.cancel()
    await settled()
    assert list(controller._scheduler.tree.grants.open) == ["runs"]
    await controller.complete(report("runs"))


@pytest.mark.parametrize(
    ("busy", "changes"),
    [
        ("a prefill takes the step", {}),
        ("nobody waits", {"max_running": 2}),
        ("it is switched off", {"prepare_after_s": None}),
        ("it does not wait for long", {"prepare_after_s": 60.0}),
        ("nothing could be kept", {"gpu": 0}),
    ],
)
async def test_nothing_is_prefilled_ahead_where(build, engine, busy, changes):
    controller = build(**changes)
    await controller.admit(ask("runs", "xy"))
    if busy != "a prefill takes the step":
        await controller.prefilled("runs")
    task = asyncio.create_task(controller.admit(ask("waits", "ab")))
    await settled()
    assert engine.plans == []
    await controller.complete(report("runs"))
    await task
    await controller.complete(report("waits"))


async def test_it_begins_as_soon_as_the_step_is_free(build, engine):
    controller = build()
    await controller.admit(ask("runs", "xy"))
    task = await overdue(controller, ask("waits", "ab"))
    assert engine.plans == []
    await controller.prefilled("runs")
    await settled()
    assert engine.asked == ["waits~ahead"]
    task.cancel()
    await settled()
    await controller.complete(report("runs"))


async def test_one_after_another_the_longest_waiting_first(build, engine):
    controller = build()
    await decoding(controller, "runs")
    tasks = [await overdue(controller, ask(query_id, query_id)) for query_id in "abc"]
    assert engine.asked == ["a~ahead"]
    await engine.end("a~ahead", PrefillResult(TOKENS + 1, 0, 1.0))
    assert engine.asked == ["a~ahead", "b~ahead"]
    await engine.end("b~ahead", PrefillResult(TOKENS + 1, 0, 1.0))
    assert engine.asked == ["a~ahead", "b~ahead", "c~ahead"]
    await engine.end("c~ahead", None)
    for task in tasks:
        task.cancel()
    await settled()
    await controller.complete(report("runs"))


async def test_what_is_in_the_gpu_already_is_left_alone(build, engine):
    controller = build()
    await fill(controller, "ab")
    await decoding(controller, "runs")
    task = await overdue(controller, ask("waits", "ab"))
    assert engine.plans == []
    task.cancel()
    await settled()
    await controller.complete(report("runs"))


async def test_an_engine_that_dies_takes_nothing_else_with_it(build, engine):
    controller = build()
    await decoding(controller, "runs")
    task = await overdue(controller, ask("waits", "ab"))
    await engine.fail("waits~ahead", EngineDied("the engine's process is gone"))
    await controller.complete(report("runs"))
    assert sources(await task) == [None, None]
    await controller.complete(report("waits"))
    assert (await controller.stats()).prepared_tokens == 0


async def test_what_its_instance_took_along_is_not_released_again(build, engine):
    controller = build()
    await decoding(controller, "runs")
    task = await overdue(controller, ask("waits", "ab"))
    await controller.restart_instance("one", [])
    await engine.end("waits~ahead", WHOLE)
    assert sources(await task) == [None, None]
    assert (await controller.stats()).prepared_tokens == 0
    await controller.complete(report("waits"))


async def test_a_request_that_is_refused_is_not_prepared(build, engine):
    controller = build(max_queued=1)
    await decoding(controller, "runs")
    task = await waiting(controller, ask("waits", ""))
    with pytest.raises(Overloaded):
        await controller.admit(ask("refused", "ab"))
    await settled()
    assert engine.plans == []
    task.cancel()
    await settled()
    await controller.complete(report("runs", PlanOutcome.COMPLETED))
