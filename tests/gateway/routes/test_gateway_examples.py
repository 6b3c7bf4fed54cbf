"""The examples, against a real gateway with fake parts."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import httpx
import openai
import pytest
from gateway_fakes import ANSWER

from examples import langchain_shape, llamaindex_shape

EXAMPLES = Path(__file__).parents[3] / "examples"
TEXT = "".join(ANSWER)
T = TypeVar("T")


async def using_http(live, call: Callable[[httpx.Client], T]) -> T:
    """The result of a call with a blocking client, while the gateway runs in this loop."""

    def run() -> T:
        with httpx.Client(base_url=live.url) as client:
            return call(client)

    return await asyncio.to_thread(run)


async def using_openai(live, call: Callable[[openai.OpenAI], T]) -> T:
    def run() -> T:
        with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
            return call(client)

    return await asyncio.to_thread(run)


async def test_langchain_retriever(live):
    def retrieve(http: httpx.Client):
        return langchain_shape.RagtreeRetriever(http, langchain_shape.Document, top_k=2).invoke("What?")

    first, second = await using_http(live, retrieve)
    assert (first.page_content, first.id) == ("document number 0", "d0#0")
    assert second.metadata == {
        "lang": "en", "source": "/v1/collections/default/documents/d1/chunks/d1%230", "title": None,
        "lines": {"first": 2, "last": 3}, "pages": None, "score": 0.9,
    }  # fmt: skip
    with pytest.raises(httpx.HTTPStatusError):
        await using_http(
            live,
            lambda http: langchain_shape.RagtreeRetriever(http, langchain_shape.Document, "nowhere").invoke("What?"),
        )


async def test_langchain_chat(live):
    messages = [("system", "Be brief."), ("human", "Hello?"), ("ai", "Hello."), ("human", "What is the capital?")]
    answer = await using_openai(live, lambda client: langchain_shape.RagtreeChat(client).invoke(messages))
    assert answer.content == TEXT
    assert [cited["document_id"] for cited in answer.response_metadata["citations"]] == ["d0", "d1", "d2", "d3"]
    parts = await using_openai(live, lambda client: list(langchain_shape.RagtreeChat(client).stream(messages)))
    assert [part.content for part in parts] == list(ANSWER)
    assert [request.query for request in live.stack.retriever.requests] == ["What is the capital?"] * 2


async def test_llamaindex_retriever_and_query_engine(live):
    live.stack.generator.words = ("It ", "is ", "document ", "number ", "2.")

    def ask(http: httpx.Client):
        retriever = llamaindex_shape.RagtreeRetriever(
            http, llamaindex_shape.TextNode, llamaindex_shape.NodeWithScore, similarity_top_k=3
        )
        return retriever.retrieve("What?"), llamaindex_shape.RagtreeQueryEngine(http).query("What?")

    found, answer = await using_http(live, ask)
    assert [(each.node.id_, each.node.get_content()) for each in found] == [
        (f"d{rank}#0", f"document number {rank}") for rank in range(3)
    ]
    assert [each.score for each in found] == [1.0, 0.9, 0.8]
    assert answer.response == "It is document number 2."
    assert answer.source_nodes == [found[2]]
    assert answer.metadata["usage"]["completion_tokens"] == 5


async def test_llamaindex_chat_engine(live):
    def talk(client: openai.OpenAI):
        engine = llamaindex_shape.RagtreeChatEngine(client)
        said = [engine.chat("First?").response, engine.chat("Second?").response]
        remembered = len(engine._history)
        engine.reset()
        return said, remembered, len(engine._history)

    assert await using_openai(live, talk) == ([TEXT, TEXT], 4, 0)
    assert [request.query for request in live.stack.retriever.requests] == ["First?", "Second?"]


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
async def test_each_example_runs(live, example: str):
    script = await asyncio.create_subprocess_exec(
        *(sys.executable, str(EXAMPLES / example), "What is the capital?"),
        env=os.environ | {"RAGTREE_URL": live.url},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        printed, _ = await script.communicate()
    assert script.returncode == 0
    assert "/v1/collections/default/documents/d0/chunks/d0%230: document number 0" in printed.decode()
    assert TEXT in printed.decode()
