import json

import openai
import pytest
from gateway_fakes import ANSWER, MODEL
from sse_reading import events_of

from protocol.errors import EngineDied, InvalidRequest
from protocol.prompts import ChatMessage

TEXT = "".join(ANSWER)
ASKED = {"model": MODEL, "input": "What is the capital?"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
LOGPROBS = "message.output_text.logprobs"
TERMINAL = {"response.completed", "response.incomplete", "response.failed"}


@pytest.fixture
async def client(live):
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="any", max_retries=0) as client:
        yield client


async def test_complete_answer(client):
    response = await client.responses.create(**ASKED, instructions="Be brief.", metadata={"trace": "7"})
    assert (response.output_text, response.status, response.model) == (TEXT, "completed", MODEL)
    assert (response.instructions, response.metadata, response.error) == ("Be brief.", {"trace": "7"}, None)
    assert response.usage.input_tokens_details.cached_tokens == 3
    assert response.usage.output_tokens == len(ANSWER)
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    (message,) = response.output
    (part,) = message.content
    assert [(cited.type, cited.file_id, cited.index) for cited in part.annotations[:2]] == [
        ("file_citation", "d0", 0),
        ("file_citation", "d1", 1),
    ]


async def test_streamed_answer(served):
    answer = await served.client.post("/v1/responses", json=ASKED | {"stream": True})
    events = events_of(answer.text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added",
        *["output_text.annotation.added"] * 4, *["output_text.delta"] * len(ANSWER),
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == TEXT
    last = events[-1]["response"]
    assert events[0]["response"]["id"] == last["id"]
    assert events[-2]["item"] == last["output"][0]
    whole = (await served.client.post("/v1/responses", json=ASKED)).json()
    changing = {"id", "created_at", "output"}
    assert {key: last[key] for key in last.keys() - changing} == {key: whole[key] for key in whole.keys() - changing}
    assert last["output"][0]["content"] == whole["output"][0]["content"]


async def test_the_clients_own_stream_puts_the_response_together(client):
    deltas = []
    async with client.responses.stream(model=MODEL, input="What is the capital?") as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                deltas.append(event.delta)
                assert event.snapshot == "".join(deltas)
        final = await stream.get_final_response()
    assert "".join(deltas) == final.output_text == TEXT


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_cut_is_incomplete(client, stream: bool):
    response = await client.responses.create(**ASKED, max_output_tokens=2, stream=stream)
    if stream:
        events = [event async for event in response]
        assert [event.type for event in events if event.type in TERMINAL] == ["response.incomplete"]
        response = events[-1].response
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output_text == "".join(ANSWER[:2])


async def test_a_conversation_with_a_former_response(served):
    asked = []
    lay_out = served.stack.layout.lay_out

    def seen(messages, *others, **options):
        asked.append(tuple(messages))
        return lay_out(messages, *others, **options)

    served.stack.layout.lay_out = seen
    former = (await served.client.post("/v1/responses", json=ASKED)).json()
    items = [
        {"role": "user", "content": "What is the capital?"},
        *former["output"],
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And of Spain?"}]},
    ]
    body = ASKED | {"input": items, "instructions": "Be brief."}
    assert (await served.client.post("/v1/responses", json=body)).status_code == 200
    assert asked[-1] == (
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "What is the capital?"),
        ChatMessage("assistant", TEXT),
        ChatMessage("user", "And of Spain?"),
    )
    assert served.stack.retriever.requests[-1].query == "And of Spain?"


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities(client, stream: bool):
    response = await client.responses.create(**ASKED, include=[LOGPROBS], top_logprobs=2, stream=stream)
    if stream:
        events = [event async for event in response]
        told = [token.token for event in events if event.type.endswith("delta") for token in event.logprobs]
        assert told == list(ANSWER)
        response = events[-1].response
    first = response.output[0].content[0].logprobs[0]
    assert (first.token, [likely.token for likely in first.top_logprobs]) == ("Paris ", ["Paris ", "PARIS "])


async def test_sampling_and_the_schema_are_passed_on(live, client):
    form = {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}
    response = await client.responses.create(
        **ASKED, temperature=0.3, top_p=0.8, text={"format": form}, extra_body={"top_k": 2, "frequency_penalty": 1}
    )
    (sampling,) = live.stack.generator.samplings
    assert (sampling.temperature, sampling.top_p, sampling.frequency_penalty) == (0.3, 0.8, 1.0)
    assert json.loads(sampling.json_schema) == SCHEMA
    assert response.text.format.schema_ == SCHEMA
    assert live.stack.retriever.requests[0].top_k == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_schema_is_a_400_that_names_the_format(served, stream: bool):
    served.stack.generator.refusal = InvalidRequest("no such type", "json_schema")
    body = ASKED | {"text": {"format": {"type": "json_object"}}, "stream": stream}
    answer = await served.client.post("/v1/responses", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "text.format")


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"tools": [{"type": "file_search", "vector_store_ids": ["x"]}]}, "tools"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"n": 2}, "n"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["reasoning.encrypted_content"]}, "include"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "42"}]}, "input.0.type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0.type"),
    ],
)
async def test_what_is_not_served_is_refused_by_name(served, given, param: str):
    answer = await served.client.post("/v1/responses", json=ASKED | given)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", param)
    assert served.stack.retriever.requests == []


@pytest.mark.parametrize(
    ("given", "status", "param"),
    [
        ({"input": " "}, 400, "input"),
        ({"input": []}, 422, "input"),
        ({"input": [{"role": "assistant", "content": "x"}]}, 400, "input"),
        ({"input": [{"type": "message", "content": "x"}]}, 400, "input.0.role"),
        ({"input": "x" * 40_000}, 400, "input"),
        ({"top_logprobs": 3}, 400, "top_logprobs"),
        ({"max_output_tokens": 0}, 422, "max_output_tokens"),
    ],
)
async def test_invalid_requests(served, given, status: int, param: str):
    answer = await served.client.post("/v1/responses", json=ASKED | given)
    assert answer.status_code == status
    assert answer.json()["error"]["param"].startswith(param)


async def test_values_that_ask_for_nothing_are_accepted(served):
    nothing = {
        "tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "store": False, "truncation": "disabled",
        "previous_response_id": None, "include": [], "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "service_tier": "auto", "reasoning": None, "user": "someone", "background": False,
    }  # fmt: skip
    assert (await served.client.post("/v1/responses", json=ASKED | nothing)).status_code == 200


async def test_dead_engine_in_mid_stream_is_a_failed_response(live, client):
    live.stack.phases.failing["decode"] = EngineDied("the engine is gone")
    events = [event async for event in await client.responses.create(**ASKED, stream=True)]
    assert [event.type for event in events if event.type in TERMINAL] == ["response.failed"]
    assert (events[-1].response.error.code, events[-1].response.status) == ("engine_died", "failed")
    assert events[-1].type == "response.failed"
