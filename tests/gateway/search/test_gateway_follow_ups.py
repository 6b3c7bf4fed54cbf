"""Follow-ups: searched alone, joined with the questions before them, or rewritten by the model."""

import asyncio
import json

import pytest
from gateway_fakes import ANSWER, MODEL, Stack, eventually
from gateway_requests import by_label

from protocol.errors import EngineDied, Overloaded
from protocol.generation import GenerationStep, PrefillResult
from protocol.plans import PlanOutcome

TALK = [
    {"role": "user", "content": "What is the capital?"},
    {"role": "assistant", "content": "Marxville."},
    {"role": "user", "content": "And its river?"},
]
CHAT = {"model": MODEL, "messages": TALK}
REWRITTEN = CHAT | {"follow_ups": "rewritten"}
NEW = "Which river is in Marxville?"


class Rewriter:
    """Makes the fake generator answer a rewriting with ``text``, and count it."""

    def __init__(self, stack: Stack) -> None:
        self.text = NEW
        self.reason = "stop"
        self.samplings = []
        self.prompts = []
        self._stack = stack
        self._stream = stack.generator.stream
        stack.generator.stream = self.stream

    async def stream(self, plan, sampling):
        if not plan.query_id.endswith("~rewrite"):
            async for step in self._stream(plan, sampling):
                yield step
            return
        self.samplings.append(sampling)
        self.prompts.append(plan.prompt)
        self._stack.generator.open += 1
        try:
            await self._stack.phases.enter("rewrite")
            yield GenerationStep(self.text, 6, PrefillResult(20, 3, 7.0), self.reason)
        finally:
            self._stack.generator.open -= 1


@pytest.fixture
def rewriter(stack: Stack) -> Rewriter:
    return Rewriter(stack)


def searched(stack: Stack) -> tuple[str, str]:
    request = stack.retriever.requests[-1]
    return request.query, request.context


JOINED = ("And its river?", "What is the capital?")


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        (None, JOINED),
        ("joined", JOINED),
        ("alone", ("And its river?", "")),
        ("rewritten", (NEW, "")),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_request_says_how_its_follow_up_is_searched(served, rewriter, path, way, expected):
    talk = {"messages": TALK} if path.endswith("completions") else {"input": TALK}
    answer = await served.client.post(path, json={"model": MODEL, "follow_ups": way, **talk})
    assert answer.status_code == 200
    assert searched(served.stack) == expected
    assert len(rewriter.samplings) == (way == "rewritten")
    assert (answer.json()["rewriting"] is not None) == (way == "rewritten")


async def test_the_configuration_says_it_for_all(in_process, rewriter):
    async with in_process(default_follow_ups="rewritten") as served:
        await served.client.post("/v1/chat/completions", json=CHAT)
        assert searched(served.stack) == (NEW, "")
        assert rewriter.samplings[0].max_tokens == 64
        await served.client.post("/v1/chat/completions", json=CHAT | {"follow_ups": "joined"})
        assert searched(served.stack) == JOINED


@pytest.mark.parametrize("value", ["both", 1, True])
async def test_other_ways_are_refused(served, value):
    answer = await served.client.post("/v1/chat/completions", json=CHAT | {"follow_ups": value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "follow_ups")


async def test_a_first_question_is_left_as_it_is(served, rewriter):
    first = {"model": MODEL, "messages": TALK[:1], "follow_ups": "rewritten"}
    answer = (await served.client.post("/v1/chat/completions", json=first)).json()
    assert answer["rewriting"] is None
    assert rewriter.samplings == []
    assert searched(served.stack) == ("What is the capital?", "")


async def test_the_rewriting_is_admitted_and_completed_before_the_answer_is(served, rewriter):
    answer = (await served.client.post("/v1/chat/completions", json=REWRITTEN)).json()
    await eventually(lambda: len(served.stack.controller.reports) == 2)
    rewriting, answering = served.stack.controller.admitted
    assert rewriting.query_id == f"{answering.query_id}~rewrite"
    assert rewriting.namespace == answering.namespace
    reports = {report.query_id: report for report in served.stack.controller.reports}
    assert {report.outcome for report in reports.values()} == {PlanOutcome.COMPLETED}
    assert reports[rewriting.query_id].completion_tokens == 6
    rewritten = answer["rewriting"]
    assert rewritten.pop("elapsed_ms") >= 0
    assert rewritten == {"status": "done", "reason": None, "question": NEW, "tokens": 26}
    # The answer is to the question as it was asked.
    assert answer["choices"][0]["message"]["content"] == "".join(ANSWER)
    assert "And its river?" in answering.prompt.segments[-1].key
    assert NEW not in answering.prompt.segments[-1].key
    assert await by_label(served, "ragtree_follow_up_rewrites_total") == {
        "done": 1, "timeout": 0, "failed": 0, "empty": 0, "too_long": 0
    }  # fmt: skip


async def test_a_stream_tells_it_on_its_first_chunk(served, rewriter):
    body = (await served.client.post("/v1/chat/completions", json=REWRITTEN | {"stream": True})).text
    chunks = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
    assert chunks[0]["rewriting"]["question"] == NEW
    assert not any("rewriting" in chunk for chunk in chunks[1:])


@pytest.mark.parametrize(
    ("text", "finish_reason", "reason"), [("", "stop", "empty"), ('"?"', "stop", "empty"), (NEW, "length", "too_long")]
)
async def test_nonsense_is_not_searched(served, rewriter, text, finish_reason, reason):
    rewriter.text, rewriter.reason = text, finish_reason
    answer = (await served.client.post("/v1/chat/completions", json=REWRITTEN)).json()
    assert searched(served.stack) == JOINED
    assert (answer["rewriting"]["status"], answer["rewriting"]["reason"]) == ("failed", reason)
    assert answer["rewriting"]["question"] is None


@pytest.mark.parametrize(("phase", "error"), [("rewrite", EngineDied("gone")), ("queue", Overloaded("full"))])
async def test_a_rewriting_that_fails_leaves_the_follow_up_joined(served, rewriter, phase, error):
    phases = served.stack.phases
    phases.failing[phase] = error
    phases.held.add("search")
    asking = asyncio.create_task(served.client.post("/v1/chat/completions", json=REWRITTEN))
    await phases.reached["search"].wait()
    phases.failing.clear()
    phases.released["search"].set()
    answer = (await asking).json()
    assert searched(served.stack) == JOINED
    assert answer["rewriting"]["reason"] == "failed"
    outcomes = [report.outcome for report in served.stack.controller.reports if "~rewrite" in report.query_id]
    assert outcomes == [PlanOutcome.FAILED]


async def test_a_conversation_that_does_not_fit_the_model_is_searched_joined(served, rewriter):
    served.stack.layout.context = 70
    answer = (await served.client.post("/v1/chat/completions", json=REWRITTEN | {"max_tokens": 5})).json()
    assert answer["rewriting"]["reason"] == "failed"
    assert searched(served.stack) == JOINED


@pytest.mark.parametrize("phase", ["rewrite", "queue"])
async def test_a_slow_rewriting_is_given_up_and_released(in_process, rewriter, stack, phase):
    async with in_process(rewrite_timeout_s=0.05) as served:
        stack.phases.held.add(phase)
        asking = asyncio.create_task(served.client.post("/v1/chat/completions", json=REWRITTEN))
        await stack.phases.reached["search"].wait()
        stack.phases.released[phase].set()
        answer = (await asking).json()
        assert answer["rewriting"]["reason"] == "timeout"
        assert answer["rewriting"]["elapsed_ms"] >= 50
        assert searched(stack) == JOINED
        await eventually(lambda: stack.at_rest and len(stack.controller.reports) == 2)
        outcomes = [report.outcome for report in stack.controller.reports if "~rewrite" in report.query_id]
        assert outcomes == [PlanOutcome.CANCELLED]


async def test_the_querys_own_time_bounds_it(in_process, rewriter, stack):
    async with in_process(query_timeout_s=0.1) as served:
        stack.phases.held.add("rewrite")
        answer = await served.client.post("/v1/chat/completions", json=REWRITTEN)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "deadline_exceeded")
        await eventually(lambda: stack.at_rest and len(stack.controller.reports) == 1)
        assert len(stack.controller.admitted) == 1


async def test_a_client_that_leaves_ends_it(live, rewriter, stack):
    stack.phases.held.add("rewrite")
    asking = asyncio.create_task(live.client.post("/v1/chat/completions", json=REWRITTEN))
    await stack.phases.reached["rewrite"].wait()
    asking.cancel()
    await eventually(lambda: stack.at_rest and live.running == 0 and bool(stack.controller.reports))
    assert [report.outcome for report in stack.controller.reports] == [PlanOutcome.CANCELLED]
    assert stack.retriever.requests == []
