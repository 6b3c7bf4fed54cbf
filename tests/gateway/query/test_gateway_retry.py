"""Retries of queries whose instance is lost before their first step."""

import asyncio
from contextlib import aclosing

import pytest
from gateway_fakes import ANSWER, MODEL, Stack, eventually, whenever_possible
from gateway_requests import by_label, total
from sse_reading import events_of, only_terminal

from protocol.errors import EngineDied, EngineFailed, Overloaded, RagtreeError
from protocol.plans import DocumentOrder, PlanOutcome

COMPLETED, FAILED, CANCELLED = PlanOutcome
GONE = EngineDied("its instance is gone")
FAILED_AT = EngineFailed("the engine failed in its step")
QUERY = {"query": "x"}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}


def lose(stack: Stack, streams: int = 1, after: int = 0, error: RagtreeError = GONE) -> None:
    """Break the first ``streams`` streams after ``after`` steps with an ``error``."""
    stream, left = stack.generator.stream, streams

    async def breaking(plan, sampling):
        nonlocal left
        breaks, said = left > 0, 0
        left -= breaks
        async with aclosing(stream(plan, sampling)) as steps:
            async for step in steps:
                if breaks and said == after:
                    raise error
                said += 1
                yield step

    stack.generator.stream = breaking


def assert_not_to_be_repeated(answer) -> None:
    """Assert that the reply tells clients not to send the request again."""
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_failed")
    assert answer.headers["x-should-retry"] == "false"
    assert "Retry-After" not in answer.headers


def outcomes(stack: Stack) -> list[tuple[str, PlanOutcome]]:
    """Every completion report in order: the suffix of its plan id, and its outcome."""
    ids = {report.query_id: "~".join(["", *report.query_id.split("~")[1:]])[1:] for report in stack.controller.reports}
    assert len({query_id.split("~")[0] for query_id in ids}) <= 1
    return [(ids[report.query_id], report.outcome) for report in stack.controller.reports]


async def settled(stack: Stack, reports: int) -> None:
    await eventually(lambda: len(stack.controller.reports) >= reports and stack.at_rest)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(stack.controller.reports) == reports


async def test_retried_query_has_the_same_events(served):
    stack = served.stack
    body = QUERY | {"stream": True}
    undisturbed = events_of((await served.client.post("/query", json=body)).text)
    await settled(stack, 1)
    stack.controller.reports.clear()
    stack.controller.admitted.clear()
    lose(stack)
    seen = events_of((await served.client.post("/query", json=body)).text)
    assert [event["type"] for event in seen] == [event["type"] for event in undisturbed]
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    assert len({event["query_id"] for event in seen}) == 1
    assert only_terminal(seen)["type"] == "query.completed"
    await settled(stack, 2)
    assert outcomes(stack) == [("", FAILED), ("retry1", COMPLETED)]
    first, second = stack.controller.admitted
    assert (first.avoid, second.avoid) == ((), ("engine-0",))
    assert (second.prompt, second.found_at, second.namespace, second.order) == (
        first.prompt,
        first.found_at,
        first.namespace,
        first.order,
    )
    failed = stack.controller.reports[0]
    assert (failed.cached_tokens, failed.computed_tokens, failed.completion_tokens) == (0, 0, 0)


@pytest.mark.parametrize("kind", ["json", "chat", "chat_sse"])
async def test_every_kind_of_reply_is_complete_after_a_retry(served, kind: str):
    lose(served.stack)
    path, body = ("/query", QUERY) if kind == "json" else ("/v1/chat/completions", CHAT)
    answer = await served.client.post(path, json=body | {"stream": kind == "chat_sse"})
    assert answer.status_code == 200
    if kind == "json":
        assert answer.json()["output_text"] == "".join(ANSWER)
    elif kind == "chat":
        assert answer.json()["choices"][0]["message"]["content"] == "".join(ANSWER)
    else:
        assert all(answer.text.count(f'"content":"{word}"') == 1 for word in ANSWER)
        assert answer.text.count("[DONE]") == 1
    await settled(served.stack, 2)
    assert outcomes(served.stack) == [("", FAILED), ("retry1", COMPLETED)]


async def test_retry_is_counted_once(served):
    lose(served.stack)
    await served.client.post("/query", json=QUERY)
    names = ("ragtree_requests_begun_again_total", "ragtree_time_to_first_token_seconds_count")
    assert [await total(served, name) for name in names] == [1, 1]
    assert await total(served, "ragtree_request_duration_seconds_count") == 1
    assert await total(served, "ragtree_requests_rejected_total") == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_second_loss_is_the_querys_own_failure(served, stream: bool):
    lose(served.stack, streams=2)
    answer = await served.client.post("/query", json=QUERY | {"stream": stream})
    if stream:
        last = only_terminal(events_of(answer.text))
        assert (last["type"], last["error"]["code"]) == ("query.failed", "engine_failed")
    else:
        assert_not_to_be_repeated(answer)
    await settled(served.stack, 2)
    assert outcomes(served.stack) == [("", FAILED), ("retry1", FAILED)]
    assert (await by_label(served, "ragtree_query_failures_total"))["engine_failed"] == 1


async def test_a_query_that_only_waited_in_lost_engines_may_be_asked_again(served):
    lose(served.stack, streams=2, error=EngineDied("it drains", begun=False))
    answer = await served.client.post("/query", json=QUERY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_died")
    assert int(answer.headers["Retry-After"]) > 0


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize(("path", "body"), [("/query", QUERY), ("/v1/chat/completions", CHAT)])
async def test_a_query_that_an_engine_failed_at_is_given_to_no_other(served, path, body, after: int):
    lose(served.stack, streams=1, after=after, error=FAILED_AT)
    assert_not_to_be_repeated(await served.client.post(path, json=body))
    await settled(served.stack, 1)
    assert outcomes(served.stack) == [("", FAILED)]
    assert await total(served, "ragtree_requests_begun_again_total") == 0


@pytest.mark.parametrize(("error", "losses"), [(FAILED_AT, 1), (GONE, 2)])
async def test_a_follow_up_that_an_engine_failed_at_is_given_to_no_other(in_process, error, losses: int):
    turns = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
    async with in_process(default_follow_ups="rewritten") as served:
        lose(served.stack, streams=2, error=error)
        assert_not_to_be_repeated(await served.client.post("/v1/chat/completions", json=CHAT | {"messages": turns}))
        await settled(served.stack, losses)


async def test_started_answer_is_not_retried(served):
    lose(served.stack, after=2)
    seen = events_of((await served.client.post("/query", json=QUERY | {"stream": True})).text)
    assert only_terminal(seen)["error"]["code"] == "engine_died"
    await settled(served.stack, 1)
    assert outcomes(served.stack) == [("", FAILED)]
    assert await total(served, "ragtree_requests_begun_again_total") == 0


@pytest.mark.parametrize("refusal", [EngineDied("there is no other"), Overloaded("too many wait")])
async def test_refused_retry_is_the_error(served, refusal):
    stack = served.stack
    admit = stack.controller.admit

    async def admit_once(request):
        if request.avoid:
            raise refusal
        return await admit(request)

    stack.controller.admit = admit_once
    lose(stack)
    answer = await served.client.post("/query", json=QUERY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, refusal.code)
    await eventually(lambda: stack.at_rest and len(stack.controller.reports) >= 1)
    assert outcomes(stack)[0] == ("", FAILED)
    assert await total(served, "ragtree_requests_begun_again_total") == 0


async def test_confirmed_guess_is_retried(served):
    stack = served.stack
    stack.controller.decide = whenever_possible
    stack.phases.held.add("prefill")
    lose(stack)
    asking = asyncio.create_task(served.client.post("/query", json=QUERY | {"top_k": 1, "stream": True}))
    await stack.phases.reached["confirm"].wait()
    await eventually(lambda: not stack.controller._speculating)
    for _ in range(20):
        await asyncio.sleep(0)
    assert stack.controller.admitted == [], "the confirmed guess needs no admission"
    stack.phases.released["prefill"].set()
    seen = events_of((await asking).text)
    assert only_terminal(seen)["type"] == "query.completed"
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    types = [event["type"] for event in seen]
    assert [types.count(name) for name in ("query.created", "retrieval.completed", "cache.resolved")] == [1, 1, 1]
    (admitted,) = stack.controller.admitted
    assert admitted.avoid == ("engine-0",)
    # The lost plan's order stays, whatever order the query asks for.
    assert (admitted.prompt, admitted.order) == (stack.controller.speculated[0].prompt, DocumentOrder.RETRIEVAL)
    await settled(stack, 2)
    assert outcomes(stack) == [("1", FAILED), ("retry1", COMPLETED)]


@pytest.mark.parametrize("phase", ["queue", "prefill"])
async def test_disconnect_during_a_retry_releases_both_plans(over_http, phase: str):
    async with over_http() as live:
        stack = live.stack
        admit, stream = stack.controller.admit, stack.generator.stream
        again = asyncio.Event()

        async def admitted(request):
            if request.avoid:
                stack.phases.held.add(phase)
                again.set()
            return await admit(request)

        stack.controller.admit = admitted
        lose(stack)
        asking = asyncio.create_task(live.client.post("/query", json=QUERY))
        await again.wait()
        await eventually(lambda: stack.phases.waiting[phase] == 1)
        asking.cancel()
        await asyncio.wait({asking})
        await eventually(lambda: live.running == 0)
        await settled(stack, 2)
        assert outcomes(stack) == [("", FAILED), ("retry1", CANCELLED)]
        assert stream is not stack.generator.stream
        assert stack.generator.open == 0


async def test_one_deadline_bounds_both_attempts(in_process):
    async with in_process(query_timeout_s=0.2, readiness_interval_s=60) as served:
        stack = served.stack
        admit = stack.controller.admit

        async def admitted(request):
            if request.avoid:
                stack.phases.held.add("queue")
            return await admit(request)

        stack.controller.admit = admitted
        lose(stack)
        async with asyncio.timeout(10):
            answer = await served.client.post("/query", json=QUERY)
        assert answer.json()["error"]["code"] == "deadline_exceeded"
        await settled(stack, 2)
        assert outcomes(stack) == [("", FAILED), ("retry1", FAILED)]
