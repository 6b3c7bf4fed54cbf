"""A lease is granted once, released once, and never lost."""

import asyncio

import pytest

from cachectl.controller import Controller
from cachectl.settings import ControllerSettings
from protocol.errors import Overloaded
from protocol.plans import AdmissionRequest, CompletionReport, PlanOutcome, SpeculationDecision
from protocol.prompts import Prompt, Segment, SegmentKind
from protocol.retrieval import CandidateSet

PROMPT = Prompt((Segment(SegmentKind.QUESTION, "k", (1, 2, 3)),))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def controller(clock):
    controller = Controller(ControllerSettings(max_running=1, max_queued=1, lease_s=10), "one", clock)
    yield controller
    controller.check_integrity()


def ask(query_id: str) -> AdmissionRequest:
    return AdmissionRequest(query_id, "tenant", PROMPT)


async def test_a_plan_carries_the_prompt_and_the_time_it_waited(controller, clock):
    await controller.admit(ask("a"))
    waiting = asyncio.create_task(controller.admit(ask("b")))
    while (await controller.stats()).queued == 0:
        await asyncio.sleep(0)
    clock.now = 2.0
    await controller.complete(CompletionReport("a", PlanOutcome.COMPLETED, cached_tokens=1, computed_tokens=2))
    plan = await waiting
    assert plan.prompt == PROMPT
    assert (plan.query_id, plan.instance, plan.namespace, plan.queued_ms) == ("b", "one", "tenant", 2000.0)


async def test_refusals_are_counted(controller):
    await controller.admit(ask("a"))
    waiting = asyncio.create_task(controller.admit(ask("b")))
    while (await controller.stats()).queued == 0:
        await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await controller.admit(ask("c"))
    assert (await controller.stats()).rejected == 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_report_counts_once_and_unknown_ones_not_at_all(controller):
    await controller.admit(ask("a"))
    report = CompletionReport("a", PlanOutcome.COMPLETED, cached_tokens=5, computed_tokens=7)
    await controller.complete(report)
    await controller.complete(report)
    await controller.complete(CompletionReport("never", PlanOutcome.FAILED))
    stats = await controller.stats()
    assert (stats.completed, stats.failed, stats.cached_tokens, stats.computed_tokens) == (1, 0, 5, 7)
    assert (stats.running, stats.queued) == (0, 0)


async def test_a_lost_lease_expires_and_makes_room(controller, clock):
    await controller.admit(ask("lost"))
    clock.now = 9.9
    controller.expire_leases()
    assert (await controller.stats()).running == 1
    clock.now = 10.0
    await controller.admit(ask("next"))
    stats = await controller.stats()
    assert (stats.expired, stats.running) == (1, 1)
    await controller.complete(CompletionReport("lost", PlanOutcome.COMPLETED))
    assert (await controller.stats()).completed == 0


async def test_nothing_speculative_is_started(controller):
    candidates = CandidateSet(stage=1, of=4, docs=(), scores=(), final=False, elapsed_ms=0.0)
    assert await controller.on_candidates("a", candidates) is SpeculationDecision.WAIT
