"""A retriever whose graph a language model writes, against a real HTTP server."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from chat_server import Body, ChatServer, Reply, chatting, passage_of, triplets
from pydantic import ValidationError
from retriever_cases import TENANT, ids, put, running, search
from structlog.testing import capture_logs

from protocol.errors import NoGraph
from protocol.graph import GraphMode, GraphRequest, GraphView
from retriever.retriever import Retriever
from retriever.settings import GraphSettings

CURIE = "Marie Curie was born in Warsaw."
VISTULA = "Warsaw lies on the Vistula."
FACTS = {CURIE: ("Marie Curie", "was born in", "Warsaw"), VISTULA: ("Warsaw", "lies on", "Vistula")}


def answer(body: Body) -> Reply:
    """The fact of a passage, or nonsense if it has none."""
    passage = passage_of(body).removesuffix("\n")
    return Reply(triplets(FACTS[passage]) if passage in FACTS else "Nothing to say.")


@asynccontextmanager
async def reading(folder, server: ChatServer, **changes) -> AsyncIterator[Retriever]:
    async with running(folder, graph=GraphSettings(kind="llm", llm=server.settings(**changes))) as retriever:
        yield retriever


async def view(retriever: Retriever, *entities: str) -> GraphView:
    return await retriever.view_graph(GraphRequest(TENANT, "default", entities))


async def eventually(condition) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def test_facts_of_a_model_lead_a_search_from_one_document_to_another(tmp_path):
    with chatting(answer) as server:
        async with reading(tmp_path, server) as retriever:
            await put(retriever, "curie", CURIE)
            await put(retriever, "vistula", VISTULA)
            await put(retriever, "noise", "Bananas are yellow.")
            await retriever.wait_for_graph()
            seen = await view(retriever, "Marie Curie")
            stated = [(relation.head, relation.relation, relation.tail) for relation in seen.relations]
            assert stated == [FACTS[CURIE], FACTS[VISTULA]]
            assert (seen.unread_chunks, seen.unreadable_chunks) == (0, 1)
            stats = await retriever.stats()
            assert (stats.unread_chunks, stats.unreadable_chunks) == (0, 1)
            found = await search(retriever, "On which river was Marie Curie born?", 2, mode=GraphMode.LOCAL)
            assert ids(found) == ["curie", "vistula"]
            asked = len(server.requests)
        async with reading(tmp_path, server) as retriever:
            await retriever.wait_for_graph()
            assert len(server.requests) == asked, "also an unreadable chunk is read once"
        async with reading(tmp_path, server, model="another") as retriever:
            await retriever.wait_for_graph()
            assert len(server.requests) == 2 * asked


async def test_documents_are_found_while_the_endpoint_fails(tmp_path):
    with chatting(lambda _: Reply(status=503)) as server:
        async with reading(tmp_path, server) as retriever:
            with capture_logs() as logs:
                await put(retriever, "curie", CURIE)
                await eventually(lambda: len(server.requests) >= 3)
            assert ids(await search(retriever, "Marie Curie")) == ["curie"]
            with pytest.raises(NoGraph, match="1 chunks are still to be read"):
                await view(retriever)
            assert (await retriever.stats()).unreadable_chunks == 0
            paused = {log["event"]: log["reason"] for log in logs}
            assert "the graph's model does not answer: Error code: 503" in paused["graph paused"]
            server.reply = answer
            await retriever.wait_for_graph()
            assert (await view(retriever)).unread_chunks == 0


async def test_a_wrong_key_is_logged_and_tried_again(tmp_path):
    with chatting(lambda _: Reply(status=401)) as server:
        async with reading(tmp_path, server) as retriever:
            with capture_logs() as logs:
                await put(retriever, "curie", CURIE)
                await eventually(lambda: len(server.requests) >= 2)
            assert any("cannot be used: Error code: 401" in log.get("reason", "") for log in logs)
            server.reply = answer
            await retriever.wait_for_graph()
            assert (await view(retriever)).size.relations == 1


async def test_a_retriever_closes_while_a_model_answers(tmp_path):
    with chatting(answer) as server:
        server.released.clear()
        async with reading(tmp_path, server) as retriever:
            await put(retriever, "curie", CURIE)
            await eventually(server.asked.is_set)
            began = time.monotonic()
        assert time.monotonic() - began < 10
        server.released.set()
        async with reading(tmp_path, server) as retriever:
            await retriever.wait_for_graph()
            assert (await view(retriever)).size.relations == 1


def test_a_graph_of_a_model_needs_an_endpoint():
    with pytest.raises(ValidationError, match=r"set llm\.base_url and llm\.model"):
        GraphSettings(kind="llm")
    with pytest.raises(ValidationError, match="base_url"):
        GraphSettings(kind="llm", llm={"model": "m", "base_url": "localhost:8000"})
