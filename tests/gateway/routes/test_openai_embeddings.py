import asyncio
import base64
import struct

import openai
import pytest
from gateway_fakes import EMBEDDER, MODEL

from gateway.settings import Limits
from protocol.errors import Unavailable

TWO = (0.6, -0.8)


@pytest.fixture
async def client(live):
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="any", max_retries=0) as client:
        yield client


# Unless told otherwise, OpenAI's client asks for base64.
@pytest.mark.parametrize("encoding", [openai.omit, "float", "base64"])
async def test_vectors_in_every_encoding(client, encoding):
    reply = await client.embeddings.create(model=EMBEDDER, input=["one text", "another text"], encoding_format=encoding)
    assert [item.index for item in reply.data] == [0, 1]
    vector = reply.data[1].embedding
    if encoding == "base64":
        vector = struct.unpack("<2f", base64.b64decode(vector))
    assert list(vector) == pytest.approx(TWO)
    assert (reply.model, reply.usage.prompt_tokens, reply.usage.total_tokens) == (EMBEDDER, 4, 4)


async def test_one_text_and_its_kind(live, client):
    await client.embeddings.create(model=EMBEDDER, input="one", extra_body={"input_type": "query"}, user="someone")
    await client.embeddings.create(model=EMBEDDER, input="one", dimensions=2)
    query, document = live.stack.retriever.embedded
    assert (query.texts, query.kind, query.dimensions) == (("one",), "query", None)
    assert (document.kind, document.dimensions) == ("document", 2)


@pytest.mark.parametrize("tokens", [[1, 2, 3], [[1, 2], [3]]])
async def test_token_ids_are_refused(client, tokens):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.embeddings.create(model=EMBEDDER, input=tokens)
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "input")


@pytest.mark.parametrize("given", ["", [], [""], None, 7, [None]])
async def test_texts_that_are_none(served, given):
    answer = await served.client.post("/v1/embeddings", json={"model": EMBEDDER, "input": given})
    assert answer.status_code == 422
    assert answer.json()["error"]["param"].startswith("input")


async def test_unknown_parameters_and_models(served):
    asked = {"model": EMBEDDER, "input": "x"}
    refused = await served.client.post("/v1/embeddings", json=asked | {"truncate": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "truncate")
    unknown = await served.client.post("/v1/embeddings", json=asked | {"model": MODEL})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_lost_retriever_is_a_503(served):
    served.stack.phases.failing["embed"] = Unavailable("the embedding endpoint does not answer")
    answer = await served.client.post("/v1/embeddings", json={"model": EMBEDDER, "input": "x"})
    assert answer.status_code == 503


async def test_texts_count_against_the_quota(in_process):
    async with in_process(limits=Limits(tokens_per_minute=5)) as served:
        for status in (200, 200, 429):
            answer = await served.client.post("/v1/embeddings", json={"model": EMBEDDER, "input": "one two three"})
            assert answer.status_code == status
            await asyncio.sleep(0)
