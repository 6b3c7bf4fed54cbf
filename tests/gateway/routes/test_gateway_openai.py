import asyncio
import json

import openai
import pytest
from gateway_fakes import ANSWER, MODEL, eventually

from protocol.errors import EngineDied
from protocol.plans import PlanOutcome

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is the capital?"}]
TEXT = "".join(ANSWER)


@pytest.fixture
async def client(live):
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="any", max_retries=0) as client:
        yield client


async def test_complete_answer(client):
    completion = await client.chat.completions.create(model=MODEL, messages=ASKED)
    assert completion.object == "chat.completion"
    (choice,) = completion.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", TEXT, "stop")
    assert completion.usage.prompt_tokens_details.cached_tokens == 3
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
    assert [cited["document_id"] for cited in completion.citations] == ["d0", "d1", "d2", "d3"]


async def test_streamed_answer(client):
    stream = await client.chat.completions.create(model=MODEL, messages=ASKED, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [cited["document_id"] for cited in chunks[0].citations] == ["d0", "d1", "d2", "d3"]
    assert not any("citations" in chunk.model_dump() for chunk in chunks[1:])
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


async def test_usage_is_in_the_last_chunk_on_request(client):
    stream = await client.chat.completions.create(
        model=MODEL, messages=ASKED, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(ANSWER)
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_chunks_are_unnamed_and_end_in_done(live):
    body = {"model": MODEL, "messages": ASKED, "stream": True}
    answer = await live.client.post("/v1/chat/completions", json=body)
    blocks = answer.text.strip("\n").split("\n\n")
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    assert blocks[-1] == "data: [DONE]"
    assert "usage" not in json.loads(blocks[0].removeprefix("data: "))


async def test_sync_client(live):
    def ask() -> tuple[str, str]:
        with openai.OpenAI(base_url=f"{live.url}/v1", api_key="any", max_retries=0) as client:
            whole = client.chat.completions.create(model=MODEL, messages=ASKED).choices[0].message.content
            stream = client.chat.completions.create(model=MODEL, messages=ASKED, stream=True)
            return whole, "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert await asyncio.to_thread(ask) == (TEXT, TEXT)


async def test_models(client):
    listed = await client.models.list()
    assert [model.id for model in listed.data] == [MODEL]
    assert (await client.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("another/model")
    assert caught.value.code == "model_not_found"


async def test_unknown_model_is_404(client):
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="gpt-5", messages=ASKED)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_extra_fields_control_the_search(live, client):
    body = {"collection": "default", "top_k": 2, "filters": {"key": "lang", "type": "eq", "value": "en"}}
    completion = await client.chat.completions.create(model=MODEL, messages=ASKED, extra_body=body)
    assert len(completion.citations) == 2
    (request,) = live.stack.retriever.requests
    assert (request.query, request.filters.key) == ("What is the capital?", "lang")


async def test_empty_stack_answers_without_documents(live, client):
    live.stack.retriever.collections.clear()
    completion = await client.chat.completions.create(model=MODEL, messages=ASKED)
    assert (completion.choices[0].message.content, completion.citations) == (TEXT, [])


@pytest.mark.parametrize(("collection", "kind"), [("nowhere", openai.NotFoundError), ("empty", openai.ConflictError)])
async def test_named_collection_must_exist(client, collection: str, kind: type[Exception]):
    with pytest.raises(kind):
        await client.chat.completions.create(model=MODEL, messages=ASKED, extra_body={"collection": collection})


async def test_content_in_parts_and_sampling(live, client):
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "the capital?"}]
    await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}],
        max_completion_tokens=4, temperature=0.3, top_p=0.8, seed=5, stop=["\n"], user="someone",
    )  # fmt: skip
    assert live.stack.retriever.requests[0].query == "What is the capital?"
    (sampling,) = live.stack.generator.samplings
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (4, 0.3, 0.8)
    assert (sampling.seed, sampling.stop) == (5, ("\n",))


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "system", "content": "x"}],
        [{"role": "user", "content": " "}],
        [{"role": "wizard", "content": "x"}],
    ],
)
async def test_conversation_without_a_question_is_refused(client, messages):
    with pytest.raises((openai.BadRequestError, openai.UnprocessableEntityError)) as caught:
        await client.chat.completions.create(model=MODEL, messages=messages)
    assert caught.value.param.startswith("messages")


async def test_dead_engine_in_mid_stream_is_an_error_chunk(live, client):
    live.stack.phases.failing["decode"] = EngineDied("the engine is gone")
    stream = await client.chat.completions.create(model=MODEL, messages=ASKED, stream=True)
    with pytest.raises(openai.APIError, match="the engine is gone"):
        async for _ in stream:
            pass


async def test_closing_the_stream_aborts_the_engine(live, client):
    live.stack.phases.held.add("decode")
    stream = await client.chat.completions.create(model=MODEL, messages=ASKED, stream=True)
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    await stream.close()
    await eventually(lambda: bool(live.stack.controller.reports) and live.stack.at_rest)
    assert [report.outcome for report in live.stack.controller.reports] == [PlanOutcome.CANCELLED]


async def test_a_follow_up_is_searched_in_the_context_of_the_question_before(live, client):
    talk = [*ASKED, {"role": "assistant", "content": "Marxville."}, {"role": "user", "content": "And its river?"}]
    await client.chat.completions.create(model=MODEL, messages=talk)
    asked = live.stack.retriever.requests[-1]
    assert (asked.query, asked.context) == ("And its river?", "What is the capital?")
