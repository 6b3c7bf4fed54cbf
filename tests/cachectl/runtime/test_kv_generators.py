"""KV generators: instances that compute what waiting requests lack, and answer none themselves."""

import asyncio
from functools import partial

import pytest
from controller_integrity import check_integrity
from controller_under_test import TOKENS, Clock, ask, cached, checked_controllers, fill, report, sources, waiting
from instance_cases import avoiding
from prefetch_cases import Engine, gives_up, overdue, settled

from cachectl.tiers.location import Capacities, KvStorage
from protocol.errors import EngineDied
from protocol.generation import PrefillResult, StepBudget
from protocol.kv import NO_PEERS, Peers
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
        yield partial(build, step=STEP, host=1000)


def generate_kv(controller, *names: str, location: str = "", peers: Peers = NO_PEERS) -> None:
    for name in names:
        controller.instances.add(name, f"boot of {name}", (), location, peers, kv_generator=True)


async def prefilling(controller, query_id: str, documents: str = "x") -> None:
    """A query whose prefill takes the whole step, so that its instance prefetches nothing."""
    await controller.admit(ask(query_id, documents, question=STEP.tokens))


async def test_a_waiting_request_finds_what_a_generator_computed(build, engine):
    controller = build()
    generate_kv(controller, "generator")
    await prefilling(controller, "runs")
    task = await overdue(controller, ask("waits", "ab"))
    (plan,) = engine.plans
    assert (plan.instance, plan.boot, plan.speculative) == ("generator", "boot of generator", True)
    await engine.end(WHOLE)
    await controller.complete(report("runs"))
    plan = await task
    # It was copied to the host memory that both share.
    assert (plan.instance, sources(plan)) == ("one", [HOST, HOST])
    stats = await controller.stats()
    assert (stats.generated_tokens, stats.prepared_tokens) == (WHOLE.computed_tokens, WHOLE.prompt_tokens)
    assert [(load.instance, load.kv_generator) for load in stats.instances] == [("one", False), ("generator", True)]
    await controller.complete(report("waits"))


async def test_a_generator_answers_no_query(build, engine):
    controller = build()
    generate_kv(controller, "generator")
    await controller.admit(ask("first", "a"))
    task = await waiting(controller, ask("second", "b"))
    assert not task.done()
    await controller.complete(report("first"))
    assert (await task).instance == "one"
    await controller.complete(report("second"))
    assert await controller.warm(ask("warm", "c")) is not None


async def test_queries_wait_for_an_instance_that_answers(build):
    controller = build()
    generate_kv(controller, "generator")
    with pytest.raises(EngineDied):
        await controller.admit(avoiding("avoids", "one"))
    controller.instances.retire("one")
    task = await waiting(controller, ask("waits", "a"))
    controller.instances.add("two", "boot", ())
    assert (await task).instance == "two"
    await controller.complete(report("waits"))


async def test_one_generator_works_for_one_request_at_a_time(build, engine):
    controller = build()
    generate_kv(controller, "generator")
    await prefilling(controller, "runs")
    first = await overdue(controller, ask("waits", "ab"))
    second = await overdue(controller, ask("waits too", "cd"))
    assert engine.prefetched == ["ab"]
    await engine.end(WHOLE)
    assert engine.prefetched == ["ab", "cd"]
    await engine.end(WHOLE)
    for task in (first, second):
        await gives_up(task)
    await controller.complete(report("runs"))
    assert await cached(controller, "cd") == [HOST, HOST]


async def test_documents_that_several_requests_wait_for_are_computed_once(build, engine):
    controller = build()
    generate_kv(controller, "first generator", "second generator")
    await prefilling(controller, "runs")
    tasks = [await overdue(controller, ask(name, "ab")) for name in ("waits", "waits too")]
    assert engine.prefetched == ["ab"]
    await engine.end(WHOLE)
    # Now they can be loaded.
    assert engine.prefetched == ["ab"]
    for task in tasks:
        await gives_up(task)
    await controller.complete(report("runs"))


async def test_two_generators_work_at_a_time(build, engine):
    controller = build()
    generate_kv(controller, "first generator", "second generator")
    await prefilling(controller, "runs")
    tasks = [await overdue(controller, ask(name, documents)) for name, documents in (("waits", "ab"), ("too", "cd"))]
    assert {plan.instance for plan in engine.plans} == {"first generator", "second generator"}
    for task in tasks:
        await gives_up(task)
    assert len(engine.cancelled) == 2
    await controller.complete(report("runs"))


async def test_a_generator_takes_the_request_whose_turn_is_farthest(build, engine):
    controller = build()
    generate_kv(controller, "generator")
    await prefilling(controller, "runs")
    tasks = [await overdue(controller, ask(name, name)) for name in "abc"]
    for _ in range(2):
        await engine.end(WHOLE)
    assert engine.prefetched == ["a", "c", "b"]
    for task in tasks:
        await gives_up(task)
    await controller.complete(report("runs"))


async def test_what_the_instance_can_load_is_not_computed(build, engine):
    controller = build(gpu=2 * TOKENS, policy="LRU")
    await fill(controller, "ab", "cd")
    assert await cached(controller, "ab") == [HOST, HOST]
    generate_kv(controller, "generator")
    await prefilling(controller, "runs", "")
    task = await overdue(controller, ask("waits", "ab"))
    (plan,) = engine.plans
    assert (plan.instance, sources(plan)) == ("one", [HOST, HOST])
    await gives_up(task)
    await controller.complete(report("runs"))


async def test_a_generator_stops_when_the_turn_comes(build, engine):
    controller = build()
    generate_kv(controller, "generator")
    await prefilling(controller, "runs")
    task = await overdue(controller, ask("waits", "ab"))
    await controller.complete(report("runs"))
    plan = await task
    await settled()
    assert sources(plan) == [None, None]
    assert engine.cancelled == engine.plans
    await controller.complete(report("waits"))
    assert (await controller.stats()).generated_tokens == 0


async def test_a_failed_generator_costs_its_request_nothing(build, engine):
    controller = build()
    generate_kv(controller, "generator")
    await prefilling(controller, "runs")
    task = await overdue(controller, ask("waits", "ab"))
    await engine.fail(EngineDied("gone"))
    controller.instances.retire("generator")
    await controller.complete(report("runs"))
    assert sources(await task) == [None, None]
    await controller.complete(report("waits"))
    assert "generator" not in controller.instances.boots


async def test_a_generator_stays_one_when_it_restarts(build, engine):
    controller = build()
    generate_kv(controller, "generator")
    controller.instances.restart("generator", "next boot", ())
    await prefilling(controller, "runs")
    task = await overdue(controller, ask("waits", "ab"))
    (plan,) = engine.plans
    assert (plan.instance, plan.boot) == ("generator", "next boot")
    await gives_up(task)
    await controller.complete(report("runs"))


async def test_a_generator_on_another_machine_serves_what_it_computed(build, engine):
    controller = build()
    controller.instances.restart("one", "", (), "", Peers(("here:1",), 1.0))
    controller.instances.add_location(KvStorage(Capacities(0, 1000, 0), location="elsewhere"))
    generate_kv(controller, "generator", location="elsewhere", peers=Peers(("there:1",), 1.0))
    await prefilling(controller, "runs")
    task = await overdue(controller, ask("waits", "ab"))
    await engine.end(WHOLE)
    await controller.complete(report("runs"))
    plan = await task
    assert [node.peer.addresses for node in plan.nodes] == [("there:1",)] * 2
    await controller.complete(report("waits"))


async def test_requests_come_to_an_end_beside_generators(build, engine):
    controller = build(gpu=4 * TOKENS)
    generate_kv(controller, "generator")
    for number in range(6):
        await prefilling(controller, f"runs {number}", "")
        left = {
            await overdue(controller, ask(f"{name} {number}", documents)): f"{name} {number}"
            for name, documents in (("one", "ab"), ("two", "ac"), ("three", "defgh"[number % 5 :]))
        }
        if number % 2 and engine.works:
            await engine.end(WHOLE)
        await controller.complete(report(f"runs {number}"))
        while left:
            # A turn waits for a prefetch on its own instance.
            while engine.works and not any(task.done() for task in left):
                await engine.end(WHOLE)
            done, _ = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED, timeout=5)
            assert done
            for task in done:
                await controller.complete(report(left.pop(task)))
            await settled()
        check_integrity(controller)


async def test_the_own_instance_loads_what_no_generator_computes(build, engine):
    controller = build(gpu=2 * TOKENS, policy="LRU")
    await fill(controller, "ab", "cd")
    generate_kv(controller, "generator")
    await prefilling(controller, "runs", "")
    task = await overdue(controller, ask("waits", "ab"))
    assert [(plan.instance, sources(plan)) for plan in engine.plans] == [("one", [HOST, HOST])]
    await engine.end(WHOLE)
    await controller.complete(report("runs"))
    assert sources(await task) == [GPU, GPU]
    await controller.complete(report("waits"))
