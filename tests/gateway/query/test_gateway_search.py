"""A query goes on with the final documents of a search, and does not wait for the end of its stream."""

import asyncio

from gateway_fakes import eventually


async def test_a_query_does_not_wait_for_the_end_of_its_search(served):
    retriever = served.stack.retriever
    search, ended, closed = retriever.search, asyncio.Event(), []

    async def lingering(request):
        try:
            async for stage in search(request):
                yield stage
            await ended.wait()
        finally:
            closed.append(ended.is_set())

    retriever.search = lingering
    answer = await served.client.post("/query", json={"query": "What?", "stream": False})
    assert answer.status_code == 200
    assert closed == []
    ended.set()
    await eventually(lambda: closed == [True])
