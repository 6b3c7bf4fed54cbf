import openai
import pytest
from gateway_fakes import ANSWER, MODEL

ASKED = [{"role": "user", "content": "What is the capital?"}]
WORDS = list(ANSWER)


@pytest.fixture
async def client(live):
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="any", max_retries=0) as client:
        yield client


async def test_log_probabilities_of_an_answer(client):
    completion = await client.chat.completions.create(model=MODEL, messages=ASKED, logprobs=True, top_logprobs=3)
    tokens = completion.choices[0].logprobs.content
    assert [token.token for token in tokens] == WORDS
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == completion.choices[0].message.content
    first = tokens[0]
    assert first.logprob == -1.0
    assert [likely.token for likely in first.top_logprobs] == ["Paris ", "PARIS ", "?"]
    assert [likely.logprob for likely in first.top_logprobs] == [-1.0, -2.0, -9999.0]


@pytest.mark.parametrize(("top", "likely"), [(None, []), (0, []), (1, ["Paris "])])
async def test_there_are_as_many_alternatives_as_asked_for(client, top, likely):
    completion = await client.chat.completions.create(
        model=MODEL, messages=ASKED, logprobs=True, top_logprobs=openai.omit if top is None else top
    )
    first = completion.choices[0].logprobs.content[0]
    assert [token.token for token in first.top_logprobs] == likely


async def test_each_chunk_has_its_tokens(client):
    stream = await client.chat.completions.create(
        model=MODEL, messages=ASKED, logprobs=True, top_logprobs=2, stream=True
    )
    told = []
    async for chunk in stream:
        (choice,) = chunk.choices
        tokens = [] if choice.logprobs is None else [token.token for token in choice.logprobs.content]
        assert "".join(tokens) == (choice.delta.content or "")
        told += tokens
    assert told == WORDS


async def test_tokens_without_text_leave_with_the_next_chunk(live, client):
    live.stack.generator.words = ("Paris ", "", "is", "")
    stream = await client.chat.completions.create(model=MODEL, messages=ASKED, logprobs=True, stream=True)
    told = []
    async for chunk in stream:
        (choice,) = chunk.choices
        if choice.logprobs is not None:
            told.append(([token.token for token in choice.logprobs.content], choice.delta.content))
    assert told == [(["Paris "], "Paris "), (["", "is"], "is"), ([""], None)]


async def test_alternatives_without_log_probabilities_are_refused(client):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=MODEL, messages=ASKED, top_logprobs=2)
    assert caught.value.param == "top_logprobs"


async def test_a_query_has_them_on_request(served):
    asked = {"query": "x", "include": ["logprobs"]}
    reply = (await served.client.post("/query", json=asked)).json()
    assert [token["token"] for token in reply["logprobs"]] == WORDS
    assert "logprobs" not in (await served.client.post("/query", json={"query": "x"})).json()
