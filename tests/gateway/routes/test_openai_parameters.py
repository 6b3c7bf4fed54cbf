"""What an OpenAI client asks for is passed on, or refused by name."""

import asyncio
import json

import openai
import pytest
from gateway_fakes import ANSWER, MODEL, eventually, whenever_possible

from protocol.errors import EngineDied, InvalidRequest, Overloaded, RateLimited

ASKED = [{"role": "user", "content": "What is the capital?"}]
CHAT = {"model": MODEL, "messages": ASKED}
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}, "required": ["b"]}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
TEXT = "".join(ANSWER)


@pytest.fixture
async def client(live):
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [TOOL]),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "look_up"}}),
        ("functions", [{"name": "look_up"}]),
        ("function_call", {"name": "look_up"}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "alloy", "format": "wav"}),
        ("store", True),
        ("service_tier", "priority"),
        ("reasoning_effort", "high"),
        ("verbosity", "low"),
        ("prediction", {"type": "content", "content": "Paris"}),
        ("web_search_options", {}),
        ("guided_json", SCHEMA),
        ("max_token", 7),
    ],
)
async def test_what_is_not_served_is_refused_by_name(served, name: str, value, stream: bool):
    answer = await served.client.post("/v1/chat/completions", json=CHAT | {name: value, "stream": stream})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", name)
    assert name in error["message"]
    assert served.stack.retriever.requests == []


async def test_values_that_ask_for_nothing_are_accepted(served):
    nothing = {
        "tools": [], "tool_choice": "none", "functions": None, "function_call": "auto", "parallel_tool_calls": True,
        "modalities": ["text"], "audio": None, "n": 1, "store": False, "service_tier": "auto", "user": "someone",
        "metadata": {"trace": "1"}, "reasoning_effort": None, "response_format": {"type": "text"}, "logprobs": False,
        "top_logprobs": None, "stop": [], "logit_bias": {}, "safety_identifier": "x", "prompt_cache_key": "y",
    }  # fmt: skip
    answer = await served.client.post("/v1/chat/completions", json=CHAT | nothing)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["logprobs"] is None
    assert served.stack.generator.checked == []


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "tool", "content": "42", "tool_call_id": "call_1"}, "messages.1.tool_call_id"),
        ({"role": "function", "content": "42", "name": "look_up"}, "messages.1.role"),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "call_1"}]}, "messages.1.tool_calls"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "messages.1.content.0.type"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, "messages.1.content.0.type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages.1.content.0.text"),
    ],
)
async def test_messages_of_tools_and_media_are_refused_by_place(served, message, param: str):
    answer = await served.client.post("/v1/chat/completions", json=CHAT | {"messages": [*ASKED, message]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_an_answer_can_be_sent_back_as_it_came(served):
    first = (await served.client.post("/v1/chat/completions", json=CHAT)).json()["choices"][0]["message"]
    body = CHAT | {"messages": [*ASKED, {**first, "tool_calls": None}, *ASKED]}
    assert (await served.client.post("/v1/chat/completions", json=body)).status_code == 200


async def test_sampling_is_passed_on(live, client):
    await client.chat.completions.create(
        model=MODEL, messages=ASKED, frequency_penalty=0.5, presence_penalty=-0.5, temperature=0.7,
        logit_bias={"9": -5}, extra_body={"min_p": 0.1, "sampling_top_k": 40, "repetition_penalty": 1.1, "top_k": 2},
    )  # fmt: skip
    (sampling,) = live.stack.generator.samplings
    assert (sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty) == (0.5, -0.5, 1.1)
    assert (sampling.min_p, sampling.top_k, sampling.temperature, sampling.logit_bias) == (0.1, 40, 0.7, {9: -5.0})
    (searched,) = live.stack.retriever.requests
    assert searched.top_k == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("frequency_penalty", 3), ("presence_penalty", -2.5), ("repetition_penalty", 0), ("min_p", 1.5), ("top_p", 0),
        ("sampling_top_k", -2), ("logit_bias", {"a": 1}), ("logit_bias", {"1": 101}), ("stop", ""), ("stop", ["x", ""]),
        ("top_logprobs", 21), ("n", 0), ("n", 17), ("response_format", {"type": "yaml"}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": "object"}}),
    ],
)  # fmt: skip
async def test_values_out_of_range_are_refused_by_name(served, name: str, value):
    answer = await served.client.post("/v1/chat/completions", json=CHAT | {name: value, "logprobs": True})
    assert answer.status_code == 422
    assert answer.json()["error"]["param"].startswith(name)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_schema_is_passed_on_with_its_order(live, client, stream: bool):
    reply = await client.chat.completions.create(model=MODEL, messages=ASKED, response_format=FORMAT, stream=stream)
    if stream:
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in reply]) == TEXT
    (sampling,) = live.stack.generator.samplings
    assert json.loads(sampling.json_schema) == SCHEMA
    assert sampling.json_schema.index('"b"') < sampling.json_schema.index('"a"')
    assert live.stack.generator.checked == [sampling]


async def test_any_object_is_a_schema_too(live, client):
    await client.chat.completions.create(model=MODEL, messages=ASKED, response_format={"type": "json_object"})
    (sampling,) = live.stack.generator.samplings
    assert json.loads(sampling.json_schema) == {"type": "object"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_schema_that_the_engine_refuses_is_a_400_before_the_search(served, stream: bool):
    served.stack.generator.refusal = InvalidRequest("vLLM refuses the request: no such type", "json_schema")
    body = CHAT | {"response_format": FORMAT, "stream": stream}
    answer = await served.client.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "response_format")
    assert "no such type" in error["message"]
    assert served.stack.retriever.requests == served.stack.controller.reports == []
    served.stack.generator.refusal = None
    assert (await served.client.post("/v1/chat/completions", json=body)).status_code == 200


@pytest.mark.parametrize(
    ("refusal", "status", "after"),
    [(RateLimited("spent", retry_after_s=7), 429, "7"), (Overloaded("full"), 503, "2")],
    ids=["of one key", "of all"],
)
async def test_too_many_schemas_are_refused_with_the_time_to_try_again(served, refusal, status, after):
    served.stack.generator.refusal = refusal
    answer = await served.client.post("/v1/chat/completions", json=CHAT | {"response_format": FORMAT})
    assert (answer.status_code, answer.headers["Retry-After"]) == (status, after)
    assert served.stack.retriever.requests == []


async def test_the_engine_knows_which_key_asks_but_not_the_key(served):
    await served.client.post("/v1/chat/completions", json=CHAT | {"response_format": FORMAT})
    (caller,) = served.stack.generator.checkers
    assert len(caller) == 32


async def test_an_engine_that_dies_during_the_check_is_a_503(served):
    served.stack.phases.failing["check"] = EngineDied("the engine is gone")
    answer = await served.client.post("/v1/chat/completions", json=CHAT | {"response_format": FORMAT})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_died")


async def schema_sent(served, schema: str):
    body = json.dumps(CHAT | {"response_format": FORMAT}).replace(json.dumps(SCHEMA), schema)
    return await served.client.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})


async def test_a_schema_with_a_lone_surrogate_is_refused(served):
    answer = await schema_sent(served, '{"const": "\\ud800"}')
    assert answer.status_code == 422
    assert answer.json()["error"]["param"].startswith("response_format")


@pytest.mark.parametrize("depth", [900, 930, 960, 990, 5000])
async def test_a_deep_schema_never_fails_the_gateway(served, depth: int):
    answer = await schema_sent(served, '{"const":' + "[" * depth + "]" * depth + "}")
    if answer.status_code != 200:
        assert answer.status_code in (400, 422), answer.text
        assert served.stack.generator.samplings == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_schema_that_fails_at_the_first_token_is_a_400_too(served, stream: bool):
    served.stack.phases.failing["prefill"] = InvalidRequest("no answer can follow this schema", "json_schema")
    answer = await served.client.post("/v1/chat/completions", json=CHAT | {"response_format": FORMAT, "stream": stream})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format")


async def test_a_guess_samples_like_its_query(served):
    stack = served.stack
    stack.controller.decide = whenever_possible
    stack.phases.held.add("second_stage")
    body = CHAT | {"response_format": FORMAT, "frequency_penalty": 1, "top_k": 1}
    asking = asyncio.create_task(served.client.post("/v1/chat/completions", json=body))
    await eventually(lambda: len(stack.generator.samplings) == 1)
    stack.phases.released["second_stage"].set()
    assert (await asking).status_code == 200
    assert len(stack.controller.speculated) == 1
    (guessed,) = stack.generator.samplings
    assert guessed.json_schema is not None
    assert guessed.frequency_penalty == 1
