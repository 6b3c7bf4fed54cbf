"""Dense, sparse and hybrid searches of a retriever, and of shards."""

import asyncio

import numpy as np
import pytest
from retriever_cases import SMALL, TENANT, ids, live_ids, put, put_lines, running, search
from sharded_cases import running_shards
from varied import varied

from protocol.filters import Comparison
from protocol.retrieval import SearchKind, SearchRequest
from retriever.embedding.hashing import HashingEmbedder
from retriever.settings import IndexSettings

DENSE, SPARSE, HYBRID = SearchKind.DENSE, SearchKind.SPARSE, SearchKind.HYBRID


class OddEmbedder(HashingEmbedder):
    """Finds the document about cats for every question: dense search alone is wrong about all others."""

    def embed_query(self, text):
        return super().embed_query("cats purr")


DOCUMENTS = [
    {"id": "cats", "text": "cats purr", "attributes": {"kind": "pet"}},
    {"id": "dogs", "text": "dogs bark", "attributes": {"kind": "pet"}},
    {"id": "owls", "text": "owls hoot", "attributes": {"kind": "bird"}},
    {"id": "crows", "text": "crows caw", "attributes": {"kind": "bird"}},
]


async def stages(retriever, query, **fields):
    return [found async for found in retriever.search(SearchRequest(TENANT, "default", query, 2, **fields))]


async def test_each_kind_finds_by_its_own_rankings(tmp_path):
    async with running(tmp_path, OddEmbedder(), search=HYBRID) as retriever:
        await put_lines(retriever, DOCUMENTS)
        dense = await search(retriever, "what do owls do", top_k=1, search=DENSE)
        sparse = await search(retriever, "what do owls do", top_k=1, search=SPARSE)
        hybrid = await search(retriever, "what do owls do", top_k=2, search=HYBRID)
        assert (ids(dense), dense.search) == (["cats"], DENSE)
        assert (ids(sparse), sparse.search) == (["owls"], SPARSE)
        assert (sorted(ids(hybrid)), hybrid.search) == (["cats", "owls"], HYBRID)
        assert dict(zip(ids(hybrid), hybrid.ranking(SPARSE), strict=True))["cats"] is None
        assert dict(zip(ids(hybrid), hybrid.ranking(SPARSE), strict=True))["owls"] == sparse.scores[0]
        assert dict(zip(ids(hybrid), hybrid.ranking(DENSE), strict=True))["cats"] == dense.scores[0]
        assert dense.ranking(DENSE) == dense.scores
        assert dense.ranking(SPARSE) == (None,)


async def test_words_come_first_in_a_hybrid_search(tmp_path):
    async with running(tmp_path, OddEmbedder()) as retriever:
        await put_lines(retriever, DOCUMENTS)
        first, last = await stages(retriever, "crows", search=HYBRID)
        assert (ids(first), first.stage, first.final) == (["crows"], 1, False)
        assert (set(ids(last)), last.stage, last.of, last.final) == ({"cats", "crows"}, 2, 2, True)
        (only,) = await stages(retriever, "crows", search=SPARSE)
        assert (only.stage, only.of, only.final) == (1, 1, True)


async def test_a_staged_hybrid_search_ends_like_one_in_two_stages(tmp_path):
    animals = [{"id": f"d{number}", "text": f"animal w{number % 7} v{number}"} for number in range(64)]
    staged = {"ivf_threshold": 32, "probe_share": 1.0, "stages": 8, "stage_ms": 1e-6}
    async with running(tmp_path, index=varied(IndexSettings, **staged)) as retriever:
        await put_lines(retriever, animals)
        await retriever.wait_for_indexes()
        await search(retriever, "warm up the planner", search=DENSE)
        sets = await stages(retriever, "animal w3 v10", search=HYBRID)
        assert len(sets) > 3
        assert [found.stage for found in sets] == list(range(1, len(sets) + 1))
        assert sets[-1].of == len(sets)
    async with running(tmp_path, index=varied(IndexSettings, **{**staged, "stages": 1})) as retriever:
        assert ids((await stages(retriever, "animal w3 v10", search=HYBRID))[-1]) == ids(sets[-1])


async def test_a_question_without_known_words_is_answered_by_embeddings(tmp_path):
    async with running(tmp_path, OddEmbedder()) as retriever:
        await put_lines(retriever, DOCUMENTS)
        assert ids(await search(retriever, "???", top_k=1, search=HYBRID)) == ["cats"]
        assert ids(await search(retriever, "???", top_k=1, search=SPARSE)) == []


async def test_request_comes_before_collection_and_that_before_configuration(tmp_path):
    async with running(tmp_path, OddEmbedder(), search=SPARSE) as retriever:
        await put_lines(retriever, DOCUMENTS)
        assert (await search(retriever, "owls")).search is SPARSE
        await retriever.put_collection(TENANT, "default", DENSE)
        assert (await search(retriever, "owls")).search is DENSE
        assert (await search(retriever, "owls", search=HYBRID)).search is HYBRID
        assert [info.search for info in await retriever.list_collections(TENANT)] == [DENSE]
        await retriever.put_collection(TENANT, "default", None)
        assert (await search(retriever, "owls")).search is SPARSE
        await retriever.put_collection("rival", "default", HYBRID)
        assert (await search(retriever, "owls")).search is SPARSE


@pytest.mark.parametrize("kind", list(SearchKind))
async def test_filters_apply_to_both_rankings(tmp_path, kind):
    async with running(tmp_path) as retriever:
        await put_lines(retriever, DOCUMENTS)
        birds = Comparison("kind", "eq", "bird")
        found = await search(retriever, "cats dogs owls crows", top_k=4, search=kind, filters=birds)
        assert sorted(ids(found)) == ["crows", "owls"]


@pytest.mark.parametrize("kind", list(SearchKind))
async def test_stale_proposals_do_not_take_the_place_of_live_chunks(tmp_path, kind):
    async with running(tmp_path) as retriever:
        await put_lines(retriever, [{"id": f"d{number}", "text": f"same words {number}"} for number in range(40)])
        gone = live_ids(retriever)[:36]
        with retriever._store.database.write() as transaction:
            # The store has dropped them, and the indexes have not noticed yet.
            transaction.executemany("DELETE FROM chunks WHERE id = ?", [(id_,) for id_ in gone])
        found = await search(retriever, "same words", top_k=5, search=kind)
        assert sorted(ids(found)) == ["d36", "d37", "d38", "d39"]


@pytest.mark.parametrize("kind", list(SearchKind))
async def test_shards_find_what_one_retriever_finds(tmp_path, kind):
    draws = np.random.default_rng(3)
    words = [f"w{number}" for number in range(40)]
    documents = [
        {"id": f"d{number}", "text": " ".join(draws.choice(words, 6, replace=False)) + f" u{number}"}
        for number in range(60)
    ]
    request = SearchRequest(TENANT, "default", "w1 w2 w3 u17", 5, search=kind)
    async with running(tmp_path / "one") as one, running_shards(tmp_path / "shards") as (sharded, _):
        await put_lines(one, documents)
        job = await sharded.put_batch(TENANT, "default", b"\n".join(map(_line, documents)))
        async with asyncio.timeout(60):
            while not job.ended:
                await asyncio.sleep(0.002)
                job = await sharded.get_job(TENANT, job.job_id)
        whole = [found async for found in one.search(request)][-1]
        merged = [found async for found in sharded.search(request)][-1]
        assert merged.search is whole.search is kind
        assert "d17" in ids(merged)
        assert len(merged.docs) == 5
        if kind is DENSE:
            assert merged.scores == pytest.approx(whole.scores)
        assert list(merged.scores) == sorted(merged.scores, reverse=True)


async def test_collection_settings_reach_all_shards(tmp_path):
    async with running_shards(tmp_path) as (sharded, shards):
        await sharded.put_collection(TENANT, "zoo", SPARSE)
        for shard in shards:
            infos = {info.name: info.search for info in await shard.list_collections(TENANT)}
            assert infos["zoo"] is SPARSE
        assert {info.name: info.search for info in await sharded.list_collections(TENANT)}["zoo"] is SPARSE


async def test_documents_of_several_chunks_are_found_by_words(tmp_path):
    async with running(tmp_path, **SMALL) as retriever:
        await put(retriever, "long", " ".join(f"word{number}" for number in range(200)), title="Long one")
        found = await search(retriever, "word150", top_k=1, search=SPARSE)
        assert "word150" in found.docs[0].text


def _line(document):
    return f'{{"id": "{document["id"]}", "text": "{document["text"]}"}}'.encode()


@pytest.mark.parametrize("kind", [DENSE, SPARSE, HYBRID])
async def test_a_follow_up_finds_its_subject_in_its_context(tmp_path, kind):
    async with running(tmp_path, HashingEmbedder()) as retriever:
        await put_lines(retriever, DOCUMENTS)
        alone = await search(retriever, "what do they do", top_k=1, search=kind)
        followed = await search(retriever, "what do they do", top_k=1, search=kind, context="tell me about owls")
        assert ids(alone) != ["owls"]
        assert ids(followed) == ["owls"]


async def test_a_new_subject_is_found_before_that_of_its_context(tmp_path):
    async with running(tmp_path, HashingEmbedder()) as retriever:
        await put_lines(retriever, DOCUMENTS)
        found = await search(retriever, "crows caw", top_k=2, search=DENSE, context="owls")
        assert ids(found) == ["crows", "owls"]
