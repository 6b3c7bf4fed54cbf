"""Speculation: plans on provisional documents."""

import pytest
from controller_under_test import LEASE_S, ask, at, cached, fill, kept, report, sources, state, waiting

from cachectl.runtime.controller import Controller
from protocol.cache import DocumentDeletion
from protocol.errors import InvalidRequest, Overloaded, UnknownPlan
from protocol.generation import StepBudget
from protocol.plans import PlanOutcome, PrefillPlan, SpeculationDecision
from protocol.tiers import Tier

GPU, HOST, DISK = Tier
START, KEEP, DROP, WAIT = (
    SpeculationDecision.START,
    SpeculationDecision.KEEP,
    SpeculationDecision.DROP,
    SpeculationDecision.WAIT,
)


# Each query of one document takes 11 of an engine's 22 tokens a step.
STEP = StepBudget(22, 20)


@pytest.fixture
def speculative(build):
    return build(max_running=9, max_queued=9, step=STEP)


async def decide(controller: Controller, query_id: str, documents: str, final: bool = False) -> SpeculationDecision:
    return await controller.on_candidates(query_id, tuple(documents), final)


async def begin(controller: Controller, query_id: str, documents: str, plan_id: str | None = None) -> PrefillPlan:
    """Ask for a decision, which must be START, and lease the speculation's plan."""
    assert await decide(controller, query_id, documents) is START
    plan = await controller.speculate(query_id, tuple(documents), ask(plan_id or f"{query_id}~1", documents))
    assert plan is not None
    return plan


async def test_speculation_follows_figure_11_of_ragcache(speculative):
    await begin(speculative, "query", "13", plan_id="first")
    assert await decide(speculative, "query", "12") is START
    await speculative.complete(report("first", PlanOutcome.CANCELLED, computed=0))
    assert await speculative.speculate("query", ("1", "2"), ask("second", "12")) is not None
    assert await decide(speculative, "query", "12") is KEEP
    await speculative.prefilled("second")
    assert (await speculative.stats()).running == 0
    assert await decide(speculative, "query", "12", final=True) is KEEP
    assert (await speculative.stats()).running == 1
    await speculative.complete(report("second"))
    assert await cached(speculative, "12") == [GPU, GPU]


async def test_a_speculation_is_planned_like_a_request(speculative):
    await fill(speculative, "a")
    plan = await begin(speculative, "query", "ab", plan_id="guess")
    assert (plan.query_id, plan.instance, plan.namespace, plan.queued_ms) == ("guess", "one", "tenant", 0.0)
    assert (plan.prompt, plan.ends, plan.unshared) == (ask("guess", "ab").prompt, (), False)
    assert (sources(plan), kept(plan)) == ([GPU, None], [GPU, GPU])


async def test_other_queries_find_what_a_dropped_speculation_computed(speculative):
    await begin(speculative, "query", "a")
    await speculative.prefilled("query~1")
    assert await decide(speculative, "query", "b", final=True) is DROP
    assert sources(await speculative.admit(ask("query", "ab"))) == [GPU, None]
    await speculative.complete(report("query~1", PlanOutcome.CANCELLED))
    await speculative.complete(report("query"))
    assert await cached(speculative, "ab") == [GPU, GPU]


async def test_a_setting_switches_speculation_off(build):
    controller = build(speculation=False, step=STEP)
    assert await decide(controller, "query", "a") is WAIT
    assert await controller.speculate("query", ("a",), ask("guess", "a")) is None
    assert await decide(controller, "query", "a", final=True) is WAIT
    assert (await controller.stats()).admitted == 0


async def test_no_speculation_starts_on_no_documents_or_on_final_ones(speculative):
    assert await decide(speculative, "query", "") is WAIT
    assert await decide(speculative, "query", "a", final=True) is WAIT


async def test_a_speculation_without_documents_is_dropped_and_forgotten(speculative):
    await begin(speculative, "query", "a")
    decisions = [await decide(speculative, "query", documents) for documents in ("", "")]
    assert decisions == [DROP, WAIT]
    await begin(speculative, "query", "a", plan_id="again")
    decisions = [await decide(speculative, "query", "b", final=True) for _ in range(2)]
    assert decisions == [DROP, WAIT]


async def test_speculations_start_while_a_step_has_tokens_left(speculative):
    await speculative.admit(ask("runs", "x"))
    await begin(speculative, "a", "a")
    assert await decide(speculative, "b", "b") is WAIT
    assert await speculative.speculate("b", ("b",), ask("b~1", "b")) is None
    await speculative.prefilled("runs")
    await begin(speculative, "b", "b")
    assert await decide(speculative, "c", "c") is WAIT


async def test_a_query_may_replace_its_own_speculation_when_there_is_no_more_room(speculative):
    for query_id in "ab":
        await begin(speculative, query_id, query_id)
    assert await decide(speculative, "c", "c") is WAIT
    await begin(speculative, "a", "c", plan_id="a~2")
    assert await decide(speculative, "a", "c") is KEEP


async def test_slots_bound_speculations_if_the_step_is_unknown(build):
    controller = build(max_running=2)
    await controller.admit(ask("runs"))
    await begin(controller, "a", "a")
    assert await decide(controller, "b", "b") is WAIT


async def test_no_speculation_starts_while_a_request_waits(speculative):
    await speculative.admit(ask("runs", "x"))
    task = await waiting(speculative, ask("waits", "yz"))
    assert await decide(speculative, "query", "a") is WAIT
    assert await speculative.speculate("query", ("a",), ask("guess", "a")) is None
    await speculative.prefilled("runs")
    await task


async def test_a_request_ends_a_speculation_whose_lease_lasts_until_it_is_completed(speculative):
    for query_id in "ab":
        await begin(speculative, query_id, query_id)
    plan = await speculative.admit(ask("request", "x"))
    assert plan.ends == ("b~1",)
    assert await decide(speculative, "a", "a") is KEEP
    # It ended before it could be confirmed, so the query is admitted like any other.
    assert await decide(speculative, "b", "b", final=True) is WAIT
    await speculative.complete(report("b~1", PlanOutcome.CANCELLED, computed=0))
    with pytest.raises(UnknownPlan):
        await speculative.complete(report("b~1", PlanOutcome.CANCELLED, computed=0))


async def test_a_waiting_request_ends_a_speculation_when_its_turn_comes(build):
    controller = build(max_running=9, step=StepBudget(30, 20))
    await controller.admit(ask("runs", "x", question=9))
    await begin(controller, "query", "a")
    task = await waiting(controller, ask("waits", "yz"))
    assert await decide(controller, "query", "a") is KEEP
    await controller.prefilled("runs")
    assert (await task).ends == ("query~1",)
    assert await decide(controller, "query", "a", final=True) is WAIT


async def test_a_confirmed_speculation_gives_way_to_no_request(speculative):
    for query_id in "ab":
        await begin(speculative, query_id, query_id)
        assert await decide(speculative, query_id, query_id, final=True) is KEEP
    task = await waiting(speculative, ask("waits", "x"))
    await speculative.complete(report("a~1"))
    assert (await task).ends == ()


async def test_admitting_a_query_ends_its_speculation(build):
    controller = build(max_running=2)
    await begin(controller, "a", "a")
    plan = await controller.admit(ask("a", "a"))
    assert plan.ends == (), "the gateway ends the query's own speculation"
    await begin(controller, "b", "b")
    assert await decide(controller, "a", "a", final=True) is WAIT


async def test_refusing_a_query_ends_its_speculation(build):
    controller = build(max_running=2, max_queued=0, step=StepBudget(11, 11))
    await begin(controller, "a", "a")
    await controller.admit(ask("runs", "x"))
    with pytest.raises(Overloaded):
        await controller.admit(ask("a", "a"))
    await controller.prefilled("runs")
    await begin(controller, "b", "b")


async def test_completing_a_query_before_admission_ends_its_speculation(build):
    controller = build(max_running=1)
    await begin(controller, "a", "a")
    with pytest.raises(UnknownPlan):
        await controller.complete(report("a", PlanOutcome.CANCELLED, computed=0))
    await begin(controller, "b", "b")


async def test_a_speculation_whose_plan_ends_is_forgotten(build):
    controller = build(max_running=1)
    await begin(controller, "a", "a")
    await controller.complete(report("a~1", PlanOutcome.CANCELLED, computed=0))
    await begin(controller, "b", "b")
    assert await decide(controller, "a", "a", final=True) is WAIT


async def test_the_speculation_of_a_lost_query_expires(build, clock):
    controller = build(max_running=1)
    await begin(controller, "lost", "a")
    clock.now = LEASE_S - 0.1
    controller.expire_leases()
    assert await decide(controller, "b", "b") is WAIT
    clock.now = LEASE_S
    controller.expire_leases()
    assert (await controller.stats()).expired == 1
    assert await decide(controller, "lost", "a", final=True) is WAIT
    await begin(controller, "b", "b")


async def test_a_speculation_whose_first_token_is_overdue_takes_no_part_of_a_step(build, clock):
    controller = build(max_running=9, step=StepBudget(11, 11), first_token_s=LEASE_S / 2)
    await begin(controller, "lost", "a")
    assert await decide(controller, "b", "b") is WAIT
    clock.now = LEASE_S / 2
    controller.expire_leases()
    await begin(controller, "b", "b")


async def test_a_speculation_ends_with_its_instance(speculative):
    await begin(speculative, "query", "a")
    speculative.instances.restart("one", "reboot", [])
    assert (await speculative.stats()).failed == 1
    assert await decide(speculative, "query", "a", final=True) is WAIT
    with pytest.raises(UnknownPlan):
        await speculative.complete(report("query~1", PlanOutcome.CANCELLED, computed=0))


async def test_no_speculation_starts_on_documents_deleted_since_the_search(speculative):
    await speculative.delete_document(DocumentDeletion(("a",), None, *at(1)))
    outdated = ask("guess", "a", found_at=at(0))
    assert await decide(speculative, "query", "a") is START
    assert await speculative.speculate("query", ("a",), outdated) is None
    assert (await speculative.stats()).admitted == 0


async def test_a_speculation_under_the_id_of_another_plan_is_refused_and_changes_nothing(speculative):
    await speculative.admit(ask("runs", "x"))
    before = await state(speculative)
    with pytest.raises(InvalidRequest, match="runs"):
        await speculative.speculate("query", ("a",), ask("runs", "a"))
    assert await state(speculative) == before
