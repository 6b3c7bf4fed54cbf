"""Searches of real retrievers and shards that are reranked by a real endpoint."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from rerank_server import RerankServer, cohere, serving, tei
from retriever_cases import TENANT, ids, put_lines, running, search
from sharded_cases import running_shards
from varied import varied

from protocol.errors import InvalidRequest, UnknownCollection
from protocol.filters import Comparison
from protocol.retrieval import RerankFailure, SearchKind, SearchRequest
from retriever.settings import IndexSettings, ShardSettings
from retriever.sharding.sharded_retriever import ShardedRetriever

DOCUMENTS = [
    {"id": f"d{number}", "text": f"tale of words {number}", "attributes": {"odd": number % 2 == 1}}
    for number in range(40)
]
QUESTION = "tale of words 3"


@asynccontextmanager
async def reranked(folder, server: RerankServer, **changes):
    # A search that was slow would have the next one cut into more stages.
    index = varied(IndexSettings, stages=1)
    async with running(folder, reranker=server.settings(candidates=40, **changes), index=index) as retriever:
        await put_lines(retriever, DOCUMENTS)
        yield retriever


async def sets_of(retriever, **fields):
    request = SearchRequest(TENANT, "default", QUESTION, fields.pop("top_k", 4), **fields)
    async with asyncio.timeout(60):
        return [found async for found in retriever.search(request)]


@pytest.mark.parametrize(("shape", "reply"), [("cohere", cohere), ("tei", tei)])
@pytest.mark.parametrize("kind", list(SearchKind))
async def test_reranker_chooses_from_more_than_are_wanted(tmp_path, shape, reply, kind):
    with serving(reply) as server:
        async with reranked(tmp_path, server, shape=shape) as retriever:
            sets = await sets_of(retriever, search=kind)
            without = await sets_of(retriever, search=kind, rerank=False)
    assert ids(sets[-1]) == ["d39", "d38", "d37", "d36"]
    assert sets[-1].scores == (39.0, 38.0, 37.0, 36.0)
    assert (sets[-1].search, sets[-1].reranking.candidates) == (kind, 40)
    assert any(score is not None for each in SearchKind for score in sets[-1].ranking(each))
    # The search's own stages are as they are without reranking, except that none is final.
    assert [ids(found) for found in sets[:-1]] == [ids(found) for found in without]
    assert [found.scores for found in sets[:-1]] == [found.scores for found in without]
    assert [found.final for found in sets] == [False] * len(without) + [True]
    assert [found.stage for found in sets] == list(range(1, len(sets) + 1))
    assert sets[-1].of == sets[-2].of == len(sets)
    assert len(server.requests) == 1


async def test_filters_come_before_reranking(tmp_path):
    with serving() as server:
        async with reranked(tmp_path, server) as retriever:
            odd = Comparison("odd", "eq", value=True)
            assert ids(await search(retriever, QUESTION, 3, filters=odd)) == ["d39", "d37", "d35"]
    assert all(text.endswith(("1", "3", "5", "7", "9")) for text in server.requests[0]["documents"])


async def test_more_results_than_candidates_may_be_wanted(tmp_path):
    with serving() as server:
        async with running(tmp_path, reranker=server.settings(candidates=2)) as retriever:
            await put_lines(retriever, DOCUMENTS)
            assert len((await search(retriever, QUESTION, 7)).docs) == 7
    assert len(server.requests[0]["documents"]) == 7


async def test_replies_that_leave_documents_out_are_completed(tmp_path):
    def two(body):
        return {"results": [{"index": 3, "relevance_score": 0.25}, {"index": 1, "relevance_score": 0.75}]}

    with serving(two) as server:
        async with reranked(tmp_path, server) as retriever:
            *_, provisional, last = await sets_of(retriever, search=SearchKind.DENSE)
    first, second, third, fourth = ids(provisional)
    assert ids(last) == [second, fourth, first, third]
    assert last.scores == (0.75, 0.25, 0.25, 0.25)


async def test_endpoint_that_answers_nonsense_leaves_the_results_as_they_were(tmp_path):
    with serving(lambda _: {"results": [{"index": 99, "relevance_score": 1}]}) as server:
        async with reranked(tmp_path, server) as retriever:
            *_, provisional, last = await sets_of(retriever)
            assert (last.docs, last.scores) == (provisional.docs, provisional.scores)
            assert last.reranking.reason is RerankFailure.INVALID
            server.reply = cohere
            assert (await search(retriever, QUESTION, 4)).reranked


async def test_slow_endpoint_is_waited_for_once(tmp_path):
    with serving() as server:
        async with reranked(tmp_path, server, timeout_s=1.0, pause_s=600) as retriever:
            server.released.clear()
            *_, provisional, last = await sets_of(retriever)
            assert ids(last) == ids(provisional)
            assert last.reranking.reason is RerankFailure.TIMEOUT
            assert last.reranking.elapsed_ms >= 1000
            *_, last = await sets_of(retriever)
            assert last.reranking.reason is RerankFailure.PAUSED
            assert last.reranking.elapsed_ms < 1000
    assert len(server.requests) == 1


async def test_endpoint_that_is_gone_comes_back(tmp_path):
    with serving() as server:
        gone = server.settings(candidates=40, pause_s=0)
    async with running(tmp_path, reranker=gone) as retriever:
        await put_lines(retriever, DOCUMENTS)
        assert (await search(retriever, QUESTION)).reranking.reason is RerankFailure.UNAVAILABLE
        with serving(port=server.port):
            assert (await search(retriever, QUESTION)).reranked


async def test_errors_of_the_search_come_before_the_reranker(tmp_path):
    with serving() as server:
        async with reranked(tmp_path, server) as retriever:
            with pytest.raises(UnknownCollection):
                await search(retriever, QUESTION, collection="other")
    assert not server.requests


async def test_reranking_cannot_be_asked_for_without_a_reranker(tmp_path):
    async with running(tmp_path) as retriever:
        await put_lines(retriever, DOCUMENTS)
        assert (await search(retriever, QUESTION)).reranking is None
        with pytest.raises(InvalidRequest, match="no reranker"):
            await search(retriever, QUESTION, rerank=True)


@pytest.mark.parametrize("kind", list(SearchKind))
async def test_shards_are_reranked_once_after_the_merge(tmp_path, kind):
    with serving() as server:
        reranker = server.settings(candidates=40)
        async with running_shards(tmp_path, 3, reranker=reranker) as (plain, shards):
            sharded = ShardedRetriever(shards, ShardSettings(count=3), 3.0, reranker)
            await _fill(sharded)
            *_, last = sets = await sets_of(sharded, search=kind)
            without = (await sets_of(plain, search=kind))[-1]
            assert len(server.requests) == 1
            assert len(server.requests[0]["documents"]) == 40
            assert ids(last) == ["d39", "d38", "d37", "d36"]
            assert {chunk.chunk_id.partition(".")[0] for chunk in last.docs} <= {"0", "1", "2"}
            assert [found.final for found in sets] == [False] * (len(sets) - 1) + [True]
            assert (ids(sets[-2]), sets[-2].scores) == (ids(without), without.scores)
            assert not (await sets_of(sharded, search=kind, rerank=False))[-1].reranking


async def test_shards_take_turns_and_lost_ones_have_none(tmp_path):
    async with AsyncExitStack() as stack:
        servers = [stack.enter_context(serving()) for _ in range(3)]
        shards = [
            await stack.enter_async_context(running(tmp_path / str(at), reranker=server.settings()))
            for at, server in enumerate(servers)
        ]
        sharded = ShardedRetriever(shards, ShardSettings(count=3, on_lost="partial"), 3.0, servers[0].settings())
        await _fill(sharded)
        for _ in range(6):
            assert (await sets_of(sharded))[-1].reranked
        assert [len(server.requests) for server in servers] == [2, 2, 2]
        await shards[1].close()
        await sharded.ready()
        for _ in range(6):
            *_, last = await sets_of(sharded)
            assert (last.reranked, last.missing_shards) == (True, ("1",))
        assert [len(server.requests) for server in servers] == [5, 2, 5]


async def test_lost_shards_do_not_answer_for_the_reranker(tmp_path):
    with serving() as server:
        async with running_shards(tmp_path, 2, reranker=server.settings()) as (_, shards):
            sharded = ShardedRetriever(shards, ShardSettings(count=2, on_lost="partial"), 3.0, server.settings())
            await _fill(sharded)
            await shards[0].close()
            # Nothing has noticed yet that it is gone.
            *_, last = await sets_of(sharded)
            assert last.reranking.reason is RerankFailure.UNAVAILABLE


async def _fill(sharded: ShardedRetriever) -> None:
    lines = b"\n".join(f'{{"id": "{each["id"]}", "text": "{each["text"]}"}}'.encode() for each in DOCUMENTS)
    job = await sharded.put_batch(TENANT, "default", lines)
    async with asyncio.timeout(60):
        while not job.ended:
            await asyncio.sleep(0.002)
            job = await sharded.get_job(TENANT, job.job_id)
