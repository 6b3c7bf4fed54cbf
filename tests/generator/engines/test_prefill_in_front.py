"""The prefill in front of a composed plan, and what the plan's own steps say of it."""

from collections.abc import AsyncIterator

import pytest

from generator.engines.vllm_streams import PlanStreams
from protocol.generation import GenerationStep, PrefillResult, Sampling
from protocol.kv import LostCopy
from protocol.plans import Donor, PlannedNode, PrefillPlan
from protocol.prompts import Prompt, Segment, SegmentKind
from protocol.tiers import Tier

GPU, HOST, DISK = Tier
SYSTEM, KNOWN, NEW = (Segment(SegmentKind.DOCUMENT, name, (1,) * 100) for name in ("system", "known", "new"))
LOST = LostCopy("other", DISK)
WRITTEN = LostCopy("unwritten", HOST)

FIRST = PrefillPlan(
    "q~first",
    "generator",
    "tenant",
    Prompt((SYSTEM, NEW)),
    nodes=(PlannedNode("s", 100, HOST, GPU), PlannedNode("sn", 100, None, GPU)),
)
PLAN = PrefillPlan(
    "q",
    "generator",
    "tenant",
    Prompt((SYSTEM, KNOWN, NEW)),
    nodes=(
        PlannedNode("s", 100, GPU, GPU),
        PlannedNode("sk", 100, None, None, donor=Donor("xk", DISK, 500)),
        PlannedNode("skn", 100, None, None, donor=Donor("sn", GPU, 100)),
    ),
    first=FIRST,
)
COMPUTED = PrefillResult(200, 100, 50.0, 2.0, loaded={HOST: 100}, lost=(LOST,))
COMPOSED = PrefillResult(300, 100, 30.0, 1.0, composed_tokens=160, recomputed_tokens=40, loaded={GPU: 100})


class Requests:
    """Requests of which none runs."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def end(self, request_id: str) -> None:
        self.ended.append(request_id)

    def has_ended_early(self, request_id: str) -> bool:
        return request_id in self.ended


class Streams(PlanStreams):
    """Plans with the given steps, by the plan's id."""

    def __init__(self, steps: dict[str, list[GenerationStep]], ends: str = "") -> None:
        super().__init__(Requests(), None, None)
        self._given = steps
        self._ends = ends
        self.streamed: list[str] = []

    async def _steps(self, plan: PrefillPlan, sampling: Sampling) -> AsyncIterator[GenerationStep]:
        self.streamed.append(plan.query_id)
        if plan.query_id == self._ends:
            self.end("q")
        for step in self._given[plan.query_id]:
            yield step


DONE_FIRST = [GenerationStep("x", 1, COMPUTED, "length", unwritten=(WRITTEN,))]


async def steps_of(streams: Streams) -> list[GenerationStep]:
    return [step async for step in streams.stream(PLAN, Sampling(8))]


async def test_both_prefills_are_reported_as_one():
    answer = [GenerationStep("a", 1, COMPOSED), GenerationStep("b", 1, finish_reason="stop", unwritten=())]
    streams = Streams({"q~first": DONE_FIRST, "q": answer})
    one, two = await steps_of(streams)
    assert streams.streamed == ["q~first", "q"]
    # Of 160 tokens that were composed, 100 are of the document that was computed in front.
    assert one.prefill == PrefillResult(300, 100, 80.0, 3.0, 60, 40, loaded={HOST: 100}, lost=(LOST,))
    assert one.prefill.computed_tokens == 140
    assert (one.text, two.text, two.prefill, two.unwritten) == ("a", "b", None, (WRITTEN,))


@pytest.mark.parametrize("unwritten", [None, ()])
async def test_what_may_still_be_written_is_unknown(unwritten):
    answer = [GenerationStep("a", 1, COMPOSED, "stop", unwritten=unwritten)]
    first = [GenerationStep("x", 1, COMPUTED, "length", unwritten=None)]
    (step,) = await steps_of(Streams({"q~first": first, "q": answer}))
    assert step.unwritten is None


async def test_a_plan_that_ends_while_it_composes_keeps_what_was_computed_in_front():
    (step,) = await steps_of(Streams({"q~first": DONE_FIRST, "q": [GenerationStep("", 0, None, "ended")]}))
    assert (step.prefill, step.finish_reason, step.unwritten) == (COMPUTED, "ended", (WRITTEN,))


async def test_a_plan_that_ends_behind_its_first_token_has_one_prefill():
    ending = [GenerationStep("a", 1, COMPOSED), GenerationStep("", 0, None, "ended")]
    one, two = await steps_of(Streams({"q~first": DONE_FIRST, "q": ending}))
    assert one.prefill is not None
    assert (two.prefill, two.finish_reason) == (None, "ended")


async def test_a_plan_that_ends_in_the_prefill_in_front_does_not_begin():
    cut = PrefillResult(150, 100, 0.0, loaded={HOST: 100})
    streams = Streams({"q~first": [GenerationStep("", 0, cut, "ended")]}, ends="q~first")
    (step,) = await steps_of(streams)
    assert (step.prefill, step.finish_reason) == (cut, "ended")
    assert streams.streamed == ["q~first"]
    assert streams._requests.ended == ["q", "q~first"]


async def test_a_plan_that_has_ended_before_it_came_computes_nothing():
    streams = Streams({})
    streams.end("q")
    (step,) = await steps_of(streams)
    assert (step.prefill, step.finish_reason, streams.streamed) == (None, "ended", [])
