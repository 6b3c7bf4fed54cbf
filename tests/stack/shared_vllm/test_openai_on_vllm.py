"""What OpenAI's own client asks for, answered by a real model and a real embedder."""

import json

import openai
import pytest

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

ASKED = "What is the capital of Freedonia?"
COUNTRIES = {"collection": "countries", "top_k": 1}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "sure": {"type": "boolean"}},
    "required": ["city", "sure"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(vllm_stack):
    with openai.OpenAI(base_url=f"{vllm_stack.url}/v1", api_key="none", timeout=120, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_follows_the_schema_of_its_chat(client, model, stream):
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    reply = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": ASKED}],
        response_format=form,
        max_tokens=80,
        stream=stream,
        extra_body=COUNTRIES,
    )
    parts = [chunk.choices[0].delta.content or "" for chunk in reply] if stream else [reply.choices[0].message.content]
    answer = json.loads("".join(parts))
    assert list(answer) == ["city", "sure"]
    assert isinstance(answer["sure"], bool)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"$ref": "#"}])
def test_a_schema_that_cannot_be_followed_is_a_400_and_harms_nothing(client, model, schema, stream):
    def ask(form):
        return client.responses.create(
            model=model, input=ASKED, max_output_tokens=4, text={"format": form}, stream=stream
        )

    with pytest.raises(openai.BadRequestError) as caught:
        ask({"type": "json_schema", "name": "x", "schema": schema})
    assert caught.value.param == "text.format"
    assert client.responses.create(model=model, input=ASKED, max_output_tokens=4).output_text


def test_tokens_of_an_answer_have_their_probabilities(client, model):
    chat = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": ASKED}],
        logprobs=True,
        top_logprobs=2,
        max_tokens=8,
        extra_body=COUNTRIES,
    )
    (choice,) = chat.choices
    tokens = choice.logprobs.content
    assert "".join(token.token for token in tokens).startswith(choice.message.content)
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in tokens)
    # The answer is greedy.
    assert all(token.token == token.top_logprobs[0].token for token in tokens)


@pytest.mark.parametrize("stream", [False, True])
def test_several_answers_rest_on_one_prefill(vllm_stack, client, model, stream):
    def texts_of(system: str) -> list[str]:
        reply = client.chat.completions.create(
            model=model,
            messages=[{"role": "system", "content": system}, {"role": "user", "content": ASKED}],
            n=3,
            temperature=1.5,
            seed=1,
            max_tokens=12,
            stream=stream,
            extra_body=COUNTRIES,
        )
        if not stream:
            return [choice.message.content for choice in reply.choices]
        texts = ["", "", ""]
        for chunk in reply:
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        return texts

    def tokens(source: str) -> float:
        return vllm_stack.metric(f'ragtree_cache_tokens_total{{source="{source}"}}')

    assert len(set(texts_of("Answer in a word."))) == 3
    computed, cached = tokens("computed"), tokens("gpu")
    # No other test has prefilled the document behind this system prompt.
    texts_of(f"Answer in a word. Streamed: {stream}.")
    computed, cached = tokens("computed") - computed, tokens("gpu") - cached
    prompt = (computed + cached) / 3
    # The others compute their question only.
    assert prompt < computed < 2 * prompt


def test_a_response_a_completion_and_a_chat_agree(client, model):
    chat = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": ASKED}], max_tokens=16, extra_body=COUNTRIES
    )
    completion = client.completions.create(model=model, prompt=ASKED, max_tokens=16, extra_body=COUNTRIES)
    *_, last = client.responses.create(
        model=model, input=ASKED, max_output_tokens=16, extra_body=COUNTRIES, stream=True
    )
    response = last.response
    assert chat.choices[0].message.content == completion.choices[0].text == response.output_text
    assert "Marxville" in response.output_text
    assert response.output[0].content[0].annotations[0].file_id == "freedonia"


def test_embeddings_tell_what_is_near(client):
    texts = ["Marxville is the capital of Freedonia.", "Bread is made of flour and water."]
    documents = client.embeddings.create(model="all-MiniLM-L6-v2", input=texts).data
    (query,) = client.embeddings.create(model="all-MiniLM-L6-v2", input=ASKED, extra_body={"input_type": "query"}).data
    near, far = (sum(a * b for a, b in zip(query.embedding, one.embedding, strict=True)) for one in documents)
    assert near > far + 0.2
    with pytest.raises(openai.NotFoundError, match="all-MiniLM-L6-v2"):
        client.embeddings.create(model="text-embedding-3-small", input=ASKED)
