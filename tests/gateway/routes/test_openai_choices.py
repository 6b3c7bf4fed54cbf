"""Several answers to one question, by OpenAI's ``n``."""

import asyncio
from collections import defaultdict

import openai
import pytest
from gateway_fakes import ANSWER, MODEL, eventually

from protocol.errors import EngineDied, InvalidRequest
from protocol.plans import PlanOutcome

ASKED = [{"role": "user", "content": "What is the capital?"}]
CHAT = {"model": MODEL, "messages": ASKED, "n": 3, "temperature": 1.0, "seed": 7}
ANSWERS = [("Paris ", "it ", "is"), ("I ", "say ", "Paris", "."), ("Pa", "ris")]
TEXTS = ["".join(words) for words in ANSWERS]
DOCUMENTS = ["d0", "d1", "d2", "d3"]


@pytest.fixture
async def client(live):
    live.stack.generator.by_seed = {7 + number: words for number, words in enumerate(ANSWERS)}
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="any", max_retries=0) as client:
        yield client


async def test_a_chat_has_as_many_answers_as_asked_for(live, client):
    reply = await client.chat.completions.create(**CHAT)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert [choice.message.content for choice in reply.choices] == TEXTS
    assert [choice.finish_reason for choice in reply.choices] == ["stop"] * 3
    assert [cited["document_id"] for cited in reply.citations] == DOCUMENTS
    assert [sampling.seed for sampling in live.stack.generator.samplings] == [7, 8, 9]
    assert reply.usage.completion_tokens == sum(map(len, ANSWERS))
    alone = await client.chat.completions.create(**CHAT | {"n": 1})
    assert reply.usage.prompt_tokens == alone.usage.prompt_tokens
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


async def test_the_answers_share_one_search_and_one_prompt(live, client):
    await client.chat.completions.create(**CHAT)
    stack = live.stack
    assert len(stack.retriever.requests) == 1
    first, *others = stack.controller.admitted
    assert [request.prompt for request in others] == [first.prompt] * 2
    await eventually(lambda: len(stack.controller.reports) == 3)
    assert {report.outcome for report in stack.controller.reports} == {PlanOutcome.COMPLETED}
    assert len({report.query_id for report in stack.controller.reports}) == 3


async def test_the_others_wait_for_the_first_one_to_be_prefilled(live, client):
    phases, generator = live.stack.phases, live.stack.generator
    phases.held.update(("prefill", "decode"))
    asking = asyncio.create_task(client.chat.completions.create(**CHAT))
    await phases.reached["prefill"].wait()
    assert len(live.stack.controller.admitted) == 1
    phases.held.discard("prefill")
    phases.released["prefill"].set()
    # The first answer is not complete yet.
    await eventually(lambda: phases.waiting["decode"] == 3)
    assert generator.calls["opened"] == 3
    phases.released["decode"].set()
    assert len((await asking).choices) == 3


async def test_without_a_seed_each_answer_is_drawn_by_chance(live, client):
    await client.chat.completions.create(**CHAT | {"seed": None})
    assert [sampling.seed for sampling in live.stack.generator.samplings] == [None] * 3


async def test_chunks_say_whose_they_are(client):
    stream = await client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
    *chunks, last = [chunk async for chunk in stream]
    texts, roles, reasons = defaultdict[int, str](str), defaultdict(list), defaultdict(list)
    for chunk in chunks:
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        roles[choice.index].append(choice.delta.role)
        reasons[choice.index].append(choice.finish_reason)
    assert [texts[index] for index in range(3)] == TEXTS
    for index, words in enumerate(ANSWERS):
        assert roles[index] == ["assistant"] + [None] * (len(words) + 1)
        assert reasons[index] == [None] * (len(words) + 1) + ["stop"]
    assert [cited["document_id"] for cited in chunks[0].citations] == DOCUMENTS
    assert not any("citations" in chunk.model_dump() for chunk in chunks[1:])
    assert (last.choices, last.usage.completion_tokens) == ([], sum(map(len, ANSWERS)))
    assert len({chunk.id for chunk in (*chunks, last)}) == 1


async def test_each_choice_has_its_own_log_probabilities(client):
    stream = await client.chat.completions.create(**CHAT, stream=True, logprobs=True)
    told = defaultdict(list)
    async for chunk in stream:
        (choice,) = chunk.choices
        if choice.logprobs is not None:
            told[choice.index] += [token.token for token in choice.logprobs.content]
    assert [tuple(told[index]) for index in range(3)] == ANSWERS


async def test_a_completion_has_several_answers_too(client):
    asked = {"model": MODEL, "prompt": "What?", "n": 2, "temperature": 1.0, "seed": 7, "logprobs": 1}
    reply = await client.completions.create(**asked)
    assert [(choice.index, choice.text) for choice in reply.choices] == list(enumerate(TEXTS[:2]))
    assert reply.usage.completion_tokens == len(ANSWERS[0]) + len(ANSWERS[1])
    texts, offsets = defaultdict[int, str](str), defaultdict[int, list[int]](list)
    async for part in await client.completions.create(**asked, stream=True):
        (choice,) = part.choices
        texts[choice.index] += choice.text
        offsets[choice.index] += choice.logprobs.text_offset if choice.logprobs else []
    assert [texts[index] for index in range(2)] == TEXTS[:2]
    assert [offsets[index] for index in range(2)] == [choice.logprobs.text_offset for choice in reply.choices]


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_equal_answers_are_refused(served, path: str):
    body = {"model": MODEL, "n": 2} | ({"prompt": "x"} if path == "completions" else {"messages": ASKED})
    error = (await served.client.post(f"/v1/{path}", json=body)).json()["error"]
    assert (error["param"], error["code"]) == ("n", "invalid_request")
    assert "temperature" in error["message"]
    assert served.stack.retriever.requests == []


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_fails_ends_the_others(live, client, stream: bool):
    phases, stack = live.stack.phases, live.stack
    phases.held.add("decode")
    asking = asyncio.create_task(client.chat.completions.create(**CHAT, stream=stream))
    await eventually(lambda: phases.waiting["decode"] == 3)
    phases.failing["decode"] = EngineDied("the engine is gone")
    phases.released["decode"].set()
    with pytest.raises(openai.APIError, match="the engine is gone"):
        async for _ in await asking:
            pass
    await eventually(lambda: live.running == 0 and len(stack.controller.reports) == 3 and stack.at_rest)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_early_error_is_a_status(served, stream: bool):
    served.stack.phases.failing["prefill"] = InvalidRequest("no answer can follow this schema", "json_schema")
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    body = CHAT | {"response_format": form, "stream": stream}
    answer = await served.client.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format")
    assert len(served.stack.controller.admitted) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("phase", "plans"), [("second_stage", 0), ("prefill", 1), ("decode", 3)])
async def test_a_disconnect_cancels_all_answers(over_http, stream: bool, phase: str, plans: int):
    async with over_http() as live:
        stack = live.stack
        stack.phases.held.add(phase)
        asking = asyncio.create_task(live.client.post("/v1/chat/completions", json=CHAT | {"stream": stream}))
        await eventually(lambda: stack.phases.waiting[phase] == max(plans, 1))
        asking.cancel()
        await asyncio.wait({asking})
        await eventually(lambda: live.running == 0 and len(stack.controller.reports) == plans and stack.at_rest)
    assert [report.outcome for report in stack.controller.reports] == [PlanOutcome.CANCELLED] * plans


async def test_each_answer_takes_a_slot(in_process):
    async with in_process(limits={"concurrent_queries": 3}) as served:
        stack = served.stack
        stack.phases.held.add("decode")
        asking = asyncio.create_task(served.client.post("/v1/chat/completions", json=CHAT))
        await eventually(lambda: stack.phases.waiting["decode"] == 3)
        assert (await served.client.post("/query", json={"query": "x"})).status_code == 429
        stack.phases.released["decode"].set()
        assert (await asking).status_code == 200
        searches = len(stack.retriever.requests)
        refused = await served.client.post("/v1/chat/completions", json=CHAT | {"n": 4})
        assert refused.status_code == 429
        assert len(stack.retriever.requests) == searches
        assert (await served.client.post("/v1/chat/completions", json=CHAT)).status_code == 200


async def test_all_answers_are_charged_and_their_prompt_once(in_process):
    async with in_process(limits={"tokens_per_minute": 1000}) as served:
        reply = await served.client.post("/v1/chat/completions", json=CHAT)
        gateway = served.app.state.gateway
        await eventually(lambda: not served.running and not len(gateway.quotas._tasks))
        assert reply.json()["usage"]["completion_tokens"] == 3 * len(ANSWER)
        after = await served.client.post("/query", json={"query": "x"})
        left = int(after.headers["x-ratelimit-remaining-tokens"])
        assert left == 1000 - reply.json()["usage"]["total_tokens"]
