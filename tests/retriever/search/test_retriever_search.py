import asyncio

import numpy as np
import pytest
from retriever_cases import TENANT, ended, ids, lines, put, put_lines, running, search, settings, upload
from tokenizers.normalizers import Replace
from varied import varied

from protocol.errors import (
    InvalidRequest,
    NoDocuments,
    RetrieverNotReady,
    UnknownCollection,
    UnknownDocument,
    UnknownJob,
)
from protocol.retrieval import SearchRequest
from retriever.build import build_retriever
from retriever.embedding.hashing import HashingEmbedder
from retriever.settings import ChunkSettings, HashingSettings, IndexSettings

ANIMALS = ["elephant", "giraffe", "crocodile", "hedgehog", "salamander", "nightingale"]


async def put_animals(retriever, count=6):
    documents = [{"id": f"d{at}", "text": f"about the {ANIMALS[at % 6]} number {at}"} for at in range(count)]
    return await put_lines(retriever, documents)


async def test_search_ranks_the_matching_document_first(tmp_path):
    async with running(tmp_path) as retriever:
        await put_animals(retriever)
        found = await search(retriever, "where does the crocodile live", top_k=3)
        assert ids(found)[0] == "d2"
        assert len(found.docs) == len(found.scores) == 3
        assert list(found.scores) == sorted(found.scores, reverse=True)
        assert (found.stage, found.of) == (1, 1)
        assert found.docs[0].filename == "d2"


async def test_search_returns_all_chunks_if_top_k_exceeds_them(tmp_path):
    async with running(tmp_path) as retriever:
        await put_animals(retriever)
        found = await search(retriever, "elephant", top_k=10_000)
        assert sorted(ids(found)) == [f"d{at}" for at in range(6)]


@pytest.mark.parametrize("top_k", [0, -1])
async def test_search_refuses_top_k_below_one(tmp_path, top_k):
    async with running(tmp_path) as retriever:
        await put_animals(retriever)
        with pytest.raises(InvalidRequest):
            await search(retriever, "elephant", top_k=top_k)


async def test_search_refuses_an_empty_or_unknown_collection(tmp_path):
    async with running(tmp_path) as retriever:
        with pytest.raises(NoDocuments):
            await search(retriever, "elephant")
        with pytest.raises(UnknownCollection):
            await search(retriever, "elephant", collection="other")
        assert [info.name for info in await retriever.list_collections(TENANT)] == ["default"]
        assert (await retriever.list_documents(TENANT, "default", 10)).documents == ()
        with pytest.raises(UnknownDocument):
            await retriever.get_document(TENANT, "default", "a")
        with pytest.raises(UnknownDocument):
            await retriever.delete_document(TENANT, "default", "a")
        for call in (retriever.get_document, retriever.delete_document):
            with pytest.raises(UnknownCollection):
                await call(TENANT, "other", "a")
        with pytest.raises(UnknownCollection):
            await retriever.list_documents(TENANT, "other", 10)
        with pytest.raises(UnknownJob):
            await retriever.get_job(TENANT, "job_none")


async def test_collection_outlives_its_last_document(tmp_path):
    async with running(tmp_path) as retriever:
        await put(retriever, "a", "elephant", collection="zoo")
        await retriever.delete_document(TENANT, "zoo", "a")
        assert (await retriever.list_documents(TENANT, "zoo", 10)).documents == ()
        with pytest.raises(NoDocuments):
            await search(retriever, "elephant", collection="zoo")
    async with running(tmp_path) as retriever:
        with pytest.raises(NoDocuments):
            await search(retriever, "elephant", collection="zoo")


async def test_search_stays_within_tenant_and_collection(tmp_path):
    async with running(tmp_path) as retriever:
        await put(retriever, "a", "elephant mine")
        await put(retriever, "b", "elephant elsewhere", collection="zoo")
        job = await retriever.put_document("rival", "default", upload("c", "elephant theirs"))
        async with asyncio.timeout(20):
            while not (await retriever.get_job("rival", job.job_id)).ended:
                await asyncio.sleep(0.002)
        assert ids(await search(retriever, "elephant")) == ["a"]
        assert ids(await search(retriever, "elephant", collection="zoo")) == ["b"]
        with pytest.raises(UnknownJob):
            await retriever.get_job(TENANT, job.job_id)
        with pytest.raises(UnknownDocument):
            await retriever.get_document("rival", "default", "a")
        with pytest.raises(UnknownCollection):
            await retriever.list_documents("rival", "zoo", 10)


async def test_search_finds_single_chunks_of_a_document(tmp_path):
    text = " ".join(f"{animal} " * 20 for animal in ANIMALS)
    async with running(tmp_path, chunks=ChunkSettings(size=24, overlap=4)) as retriever:
        await put(retriever, "a", text, title="Zoo", filename="zoo.txt")
        found = await search(retriever, "hedgehog", top_k=1)
        (chunk,) = found.docs
        assert chunk.text.startswith("Zoo\n")
        assert "hedgehog" in chunk.text
        assert chunk.filename == "zoo.txt"
        stored = await retriever.get_document(TENANT, "default", "a")
        assert stored.text == text.strip()
        assert 1 <= chunk.index < stored.info.chunks


async def test_listing_pages_by_id(tmp_path):
    async with running(tmp_path) as retriever:
        await put_animals(retriever, 5)
        seen, cursor = [], None
        while True:
            page = await retriever.list_documents(TENANT, "default", 2, cursor)
            seen += [info.document_id for info in page.documents]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert seen == ["d0", "d1", "d2", "d3", "d4"]
        for limit in (0, 1001):
            with pytest.raises(InvalidRequest):
                await retriever.list_documents(TENANT, "default", limit)


async def test_calls_are_refused_before_start_and_after_close(tmp_path):
    retriever = build_retriever(settings(), tmp_path)

    async def refuses_everything():
        with pytest.raises(RetrieverNotReady):
            await retriever.ready()
        with pytest.raises(RetrieverNotReady):
            await search(retriever, "elephant")
        with pytest.raises(RetrieverNotReady):
            await retriever.put_document(TENANT, "default", upload("a", "text"))
        with pytest.raises(RetrieverNotReady):
            await retriever.list_collections(TENANT)

    await refuses_everything()
    await retriever.start()
    await retriever.ready()
    await retriever.close()
    await refuses_everything()
    await retriever.close()


async def test_closing_before_start_releases_the_files(tmp_path):
    await build_retriever(settings(), tmp_path).close()
    async with running(tmp_path) as retriever:
        await retriever.ready()


SMALL_IVF = varied(IndexSettings, ivf_threshold=64, probe_share=1.0)


async def test_large_collection_has_a_saved_index_that_is_reconciled(tmp_path):
    async with running(tmp_path, index=SMALL_IVF) as retriever:
        await put_animals(retriever, 300)
        await retriever.wait_for_indexes()
        before = await search(retriever, "salamander number 100", top_k=5)
    (file,) = (tmp_path / "indexes").iterdir()
    good = file.read_bytes()

    # The saved index lacks these changes, as after a crash.
    async with running(tmp_path, index=SMALL_IVF) as retriever:
        assert (await search(retriever, "salamander number 100", top_k=5)).docs == before.docs
        await put(retriever, "new", "zebra")
        await retriever.delete_document(TENANT, "default", before.docs[0].document_id)
    for content in (good, good[:1000], b"{}\nforeign", b""):
        file.write_bytes(content)
        async with running(tmp_path, index=SMALL_IVF) as retriever:
            assert ids(await search(retriever, "zebra", top_k=1)) == ["new"]
            after = await search(retriever, "salamander number 100", top_k=400)
            assert len(after.docs) == 300
            assert before.docs[0].document_id not in ids(after)


async def test_ivf_index_answers_like_exact_search(tmp_path):
    async with running(tmp_path / "ivf", index=SMALL_IVF) as approximate, running(tmp_path / "flat") as exact:
        for retriever in (approximate, exact):
            await put_animals(retriever, 300)
            await retriever.wait_for_indexes()
        for query in ("hedgehog number 7", "about", "nightingale number 299"):
            left, right = await search(approximate, query), await search(exact, query)
            np.testing.assert_allclose(left.scores, right.scores, atol=1e-5)


async def test_document_without_chunks_under_a_new_embedder_is_kept(tmp_path):
    marks = ("§ " * 20_000).strip()
    async with running(tmp_path) as retriever:
        await put(retriever, "marks", marks)
        await put(retriever, "words", "a lighthouse in the fog")
    other = HashingEmbedder(varied(HashingSettings, dimension=512))
    other.tokenizer.normalizer = Replace("§", "")
    async with running(tmp_path, other) as retriever:
        assert (await retriever.get_document(TENANT, "default", "marks")).text == marks
        assert ids(await search(retriever, "lighthouse")) == ["words"]


async def test_new_embedder_re_embeds_all_documents(tmp_path):
    async with running(tmp_path) as retriever:
        await put_animals(retriever, 100)
        before = await retriever.get_document(TENANT, "default", "d2")
    other = HashingEmbedder(varied(HashingSettings, dimension=512))
    async with running(tmp_path, embedder=other) as retriever:
        assert ids(await search(retriever, "crocodile number 2", top_k=1)) == ["d2"]
        assert await retriever.get_document(TENANT, "default", "d2") == before
        (info,) = await retriever.list_collections(TENANT)
        assert (info.documents, info.chunks) == (100, 100)


async def test_search_that_finds_deleted_chunks_repeats(tmp_path):
    async with running(tmp_path) as retriever:
        await put_animals(retriever, 60)
        # The index keeps the deleted chunks and still proposes them.
        retriever._ingestion.intake._committer.remove_from_indexes = lambda *_: None
        nearest = ids(await search(retriever, "crocodile", top_k=10))
        for document_id in nearest:
            await retriever.delete_document(TENANT, "default", document_id)
        found = ids(await search(retriever, "crocodile", top_k=50))
        assert len(found) == 50
        assert not set(found) & set(nearest)


async def test_search_never_sees_a_partial_replacement(tmp_path):
    """While a document is replaced, every search sees all chunks of one version."""
    body = " ".join(f"{animal} " * 30 for animal in ANIMALS)
    async with running(tmp_path, chunks=ChunkSettings(size=24, overlap=0)) as retriever:
        await put(retriever, "a", body, title="version 0")
        count = (await retriever.get_document(TENANT, "default", "a")).info.chunks
        versions = set()
        done = asyncio.Event()

        async def keep_searching():
            while not done.is_set():
                found = await search(retriever, "elephant crocodile", top_k=4 * count)
                titles = {chunk.text.split("\n")[0] for chunk in found.docs}
                assert len(titles) == 1
                assert sorted(chunk.index for chunk in found.docs) == list(range(count))
                versions.update(titles)

        async def keep_replacing():
            for version in range(1, 10):
                await put(retriever, "a", body, title=f"version {version}")
            done.set()

        await asyncio.gather(keep_searching(), keep_searching(), keep_replacing())
        assert len(versions) > 1


async def test_equal_texts_share_their_content_hash(tmp_path):
    async with running(tmp_path) as retriever:
        await put_lines(retriever, [{"id": "a", "text": "same"}, {"id": "b", "text": "same"}])
        first, second = (await search(retriever, "same")).docs
        assert first.content_hash == second.content_hash
        assert first.chunk_id != second.chunk_id


async def test_closed_search_does_not_block_ingestion(tmp_path):
    async with running(tmp_path) as retriever:
        await put_animals(retriever)
        stages = retriever.search(SearchRequest(TENANT, "default", "elephant", 3))
        await anext(stages)
        await stages.aclose()
        job = await retriever.put_batch(TENANT, "default", lines([{"id": "z", "text": "later"}]))
        assert (await ended(retriever, job)).status == "completed"
