import openai
import pytest
from gateway_fakes import ANSWER, MODEL

from protocol.errors import EngineDied

TEXT = "".join(ANSWER)


@pytest.fixture
async def client(live):
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("prompt", ["What is the capital?", ["What is the capital?"]])
async def test_the_prompt_is_the_question(live, client, prompt):
    answer = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=4, temperature=0.3, stop=["\n"])
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason, choice.logprobs) == ("".join(ANSWER[:4]), "length", None)
    assert (answer.object, answer.usage.completion_tokens) == ("text_completion", 4)
    assert [cited["document_id"] for cited in answer.citations] == ["d0", "d1", "d2", "d3"]
    assert live.stack.retriever.requests[0].query == "What is the capital?"
    (sampling,) = live.stack.generator.samplings
    assert (sampling.temperature, sampling.stop) == (0.3, ("\n",))


async def test_streamed_answer(client):
    stream = await client.completions.create(
        model=MODEL, prompt="What?", stream=True, stream_options={"include_usage": True}
    )
    parts = [part async for part in stream]
    assert "".join(part.choices[0].text for part in parts[:-1]) == TEXT
    assert [part.choices[0].finish_reason for part in parts[:-1]] == [None] * len(ANSWER) + ["stop"]
    assert [cited["document_id"] for cited in parts[0].citations] == ["d0", "d1", "d2", "d3"]
    assert not any("citations" in part.model_dump() for part in parts[1:])
    assert (parts[-1].choices, parts[-1].usage.completion_tokens) == ([], len(ANSWER))
    assert len({part.id for part in parts}) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities(client, stream: bool):
    answer = await client.completions.create(model=MODEL, prompt="What?", logprobs=2, stream=stream)
    parts = [part async for part in answer] if stream else [answer]
    told = [part.choices[0].logprobs for part in parts if part.choices[0].logprobs is not None]
    tokens = [token for logprobs in told for token in logprobs.tokens]
    offsets = [offset for logprobs in told for offset in logprobs.text_offset]
    assert tokens == list(ANSWER)
    assert [TEXT[offset:].startswith(token) for offset, token in zip(offsets, tokens, strict=True)] == [True] * 6
    assert told[0].top_logprobs[0] == {"Paris ": -1.0, "PARIS ": -2.0}
    assert told[0].token_logprobs[0] == -1.0


@pytest.mark.parametrize(
    ("name", "value"),
    [("echo", True), ("suffix", "."), ("best_of", 2), ("prompt", ["a", "b"]), ("prompt", [1, 2])],
)
async def test_what_is_not_served_is_refused_by_name(served, name: str, value):
    answer = await served.client.post("/v1/completions", json={"model": MODEL, "prompt": "What?", name: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", name)
    assert served.stack.retriever.requests == []


@pytest.mark.parametrize(("given", "param"), [({"prompt": " "}, "prompt"), ({"prompt": []}, "prompt"), ({}, "prompt")])
async def test_a_prompt_without_text(served, given, param):
    answer = await served.client.post("/v1/completions", json={"model": MODEL} | given)
    assert answer.status_code == 422
    assert answer.json()["error"]["param"].startswith(param)


async def test_errors_name_the_prompt(served):
    body = {"model": MODEL, "prompt": "x" * 40_000}
    answer = await served.client.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")
    unknown = await served.client.post("/v1/completions", json={"model": "gpt-5", "prompt": "x"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


async def test_dead_engine_in_mid_stream_is_an_error(live, client):
    live.stack.phases.failing["decode"] = EngineDied("the engine is gone")
    stream = await client.completions.create(model=MODEL, prompt="What?", stream=True)
    with pytest.raises(openai.APIError, match="the engine is gone"):
        async for _ in stream:
            pass
