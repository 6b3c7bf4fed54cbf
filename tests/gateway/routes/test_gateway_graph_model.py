"""The stack's own chats as the language model that reads chunks for a graph."""

import asyncio
import json

import pytest
from gateway_fakes import MODEL
from varied import varied

from protocol.errors import InvalidRequest, Overloaded, Unavailable
from protocol.graph import Triplet
from retriever.graph.extractors.llm.extractor import LlmExtractor
from retriever.settings import LlmSettings
from retriever.store.incoming import SourceText

BORN = Triplet("Marie Curie", "was born in", "Warsaw")


@pytest.fixture
def extract(live):
    """Read a chunk by the model of this stack, whose fake engine always answers with BORN."""
    live.stack.generator.words = (json.dumps({"triplets": [BORN._asdict()]}),)
    settings = varied(LlmSettings, base_url=f"{live.url}/v1", model=MODEL, max_tokens=64, max_retries=0)
    extractor = LlmExtractor(settings)
    source = SourceText("Marie Curie was born in Warsaw.", "Marie Curie")
    yield lambda: asyncio.to_thread(extractor.extract, [source])
    extractor.close()


async def test_the_stack_serves_what_the_extractor_asks_for(live, extract):
    ((statement,),) = await extract()
    assert statement.triplets == (BORN,)
    (sampling,) = live.stack.generator.samplings
    assert (sampling.temperature, sampling.max_tokens) == (0, 64)
    assert json.loads(sampling.json_schema)["required"] == ["triplets"]


async def test_a_stack_without_schemas_is_asked_without_them(live, extract):
    live.stack.generator.refusal = InvalidRequest("no schemas", "json_schema")
    refusing = live.stack.generator.check

    async def check(sampling, caller):
        if sampling.json_schema is not None:
            await refusing(sampling, caller)

    live.stack.generator.check = check
    ((statement,),) = await extract()
    assert statement.triplets == (BORN,)


async def test_a_full_queue_is_unavailable(live, extract):
    live.stack.phases.failing["queue"] = Overloaded("full")
    with pytest.raises(Unavailable, match="503"):
        await extract()
