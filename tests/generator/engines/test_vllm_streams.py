"""The end of a plan's stream, when it races with the engine's report. The engine is played by the test."""

import contextlib
from collections.abc import AsyncGenerator

import pytest
from kv_plans import FIRST, GPU, SYSTEM, kv_path

from generator.connector.messages import EngineReport, Prefilled
from generator.connector.report_router import ReportRouter
from generator.engines.vllm_streams import PlanStreams
from protocol.generation import GenerationStep, Sampling
from protocol.kv import LostCopy
from protocol.plans import PrefillPlan

outputs = pytest.importorskip("vllm.outputs")

LOST = LostCopy("a node", GPU)


class AbortedRequests:
    """An engine's requests: the client's end comes first, and the engine's ``report`` behind it."""

    def __init__(self, router: ReportRouter, report: EngineReport) -> None:
        self._router = router
        self._report = report

    def end(self, request_id: str) -> None:
        """No other request runs."""

    def has_ended_early(self, request_id: str) -> bool:
        """The end comes while the request runs."""
        return False

    async def generate(self, request_id: str, *args: object) -> AsyncGenerator[object, None]:
        """The one output of an aborted request."""
        self._router.receive(self._report)
        completion = outputs.CompletionOutput(0, "", [], None, None, finish_reason="abort")
        yield outputs.RequestOutput(request_id, None, [], None, [completion], finished=True)


async def ended(plan: PrefillPlan, prefilled: Prefilled) -> GenerationStep:
    """The one step of a stream that is ended, given what the engine's process reports about it."""
    router = ReportRouter()
    report = EngineReport(prefilled={plan.query_id: prefilled}, lost=(LOST,))
    streams = PlanStreams(AbortedRequests(router, report), router, boot=None)
    async with contextlib.aclosing(streams.stream(plan, Sampling(max_tokens=4))) as stream:
        [step] = [step async for step in stream]
    assert step.finish_reason == "ended"
    return step


@pytest.fixture
def plan() -> PrefillPlan:
    return kv_path((SYSTEM, FIRST)).plan("why?", None, GPU)


async def test_an_end_that_overtakes_the_first_token_reports_the_whole_prompt(plan):
    """The engine keeps all nodes with its first token, so the controller must learn of them."""
    step = await ended(plan, Prefilled({GPU: 27}, 0.0, reached=None))
    assert step.prefill.prompt_tokens == plan.prompt.token_count
    assert step.prefill.cached_tokens == 27
    assert step.prefill.lost == (LOST,)


async def test_an_end_in_the_middle_of_the_prompt_reports_what_was_reached(plan):
    assert (await ended(plan, Prefilled({}, 0.0, reached=64))).prefill.prompt_tokens == 64


async def test_an_end_before_anything_is_computed_reports_nothing(plan):
    assert (await ended(plan, Prefilled({}, 0.0, reached=0))).prefill is None
