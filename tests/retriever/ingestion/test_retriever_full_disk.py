import pytest
from retriever_cases import TENANT, ids, put, put_lines, running, search, upload
from varied import varied

from protocol.errors import StorageFull
from retriever.embedding.hashing import HashingEmbedder
from retriever.settings import HashingSettings

LIMIT = 300_000


async def everything(retriever):
    infos = (await retriever.list_documents(TENANT, "default", 1000)).documents
    return [await retriever.get_document(TENANT, "default", info.document_id) for info in infos]


async def test_upload_that_does_not_fit_leaves_nothing(tmp_path):
    async with running(tmp_path, max_database_bytes=LIMIT) as retriever:
        await put(retriever, "a", "elephant")
        before = await everything(retriever)
        with pytest.raises(StorageFull):
            await retriever.put_document(TENANT, "huge", upload("b", "word " * 200_000), "key")
        assert await everything(retriever) == before
        assert [info.name for info in await retriever.list_collections(TENANT)] == ["default"]
        # The key is still free, and smaller uploads succeed.
        job = await retriever.put_document(TENANT, "default", upload("c", "giraffe"), "key")
        assert job.total == 1
    async with running(tmp_path, max_database_bytes=LIMIT) as retriever:
        assert ids(await search(retriever, "elephant"))[0] == "a"


async def test_disk_that_fills_up_during_ingestion(tmp_path):
    # The queue fits on the disk. The vectors, 8 KiB per document, do not.
    wide = HashingEmbedder(varied(HashingSettings, dimension=2048))
    changes = {"max_database_bytes": LIMIT, "group_documents": 5}
    async with running(tmp_path, wide, **changes) as retriever:
        job = await put_lines(retriever, [{"id": f"d{n:02}", "text": f"number{n} text"} for n in range(60)])
        assert job.status == "completed"
        assert 0 < job.stored < 60
        assert job.stored % 5 == 0
        assert job.stored + job.failed_documents == job.total == 60
        assert {error.code for error in job.errors} == {"storage_full"}
        assert len(job.errors) == job.failed_documents
        expected = [f"d{n:02}" for n in range(job.stored)]
        assert [document.info.document_id for document in await everything(retriever)] == expected
        assert sorted(ids(await search(retriever, "text", top_k=100))) == expected
        assert all(document.info.chunks == 1 for document in await everything(retriever))
    async with running(tmp_path, wide) as retriever:
        assert sorted(ids(await search(retriever, "text", top_k=100))) == expected
        job = await put_lines(retriever, [{"id": f"d{n:02}", "text": f"number{n} text"} for n in range(60)])
        assert (job.unchanged, job.stored) == (len(expected), 60 - len(expected))


async def test_replacement_that_does_not_fit_keeps_the_old_document(tmp_path):
    wide = HashingEmbedder(varied(HashingSettings, dimension=16384, max_tokens=16))
    async with running(tmp_path, wide, max_database_bytes=LIMIT, chunks={"overlap": 0}) as retriever:
        await put(retriever, "a", "elephant")
        job = await put(retriever, "a", "giraffe " * 100)
        assert (job.status, job.last_error.code) == ("failed", "storage_full")
        assert (await retriever.get_document(TENANT, "default", "a")).text == "elephant"
        assert [chunk.text for chunk in (await search(retriever, "giraffe")).docs] == ["elephant"]
