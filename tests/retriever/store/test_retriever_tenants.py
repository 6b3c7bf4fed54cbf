"""A tenant learns nothing about another tenant's documents and jobs: they look like unknown ones."""

import asyncio

import pytest
from retriever_cases import running, upload
from sharded_cases import running_shards

from protocol.errors import NotFound, RagtreeError
from protocol.retrieval import SearchRequest

OWNER, CURIOUS = "owner", "curious"


@pytest.fixture
async def alone(tmp_path):
    async with running(tmp_path) as retriever:
        yield retriever


@pytest.fixture
async def sharded(tmp_path):
    async with running_shards(tmp_path, 2) as (retriever, _):
        yield retriever


@pytest.fixture(params=["alone", "sharded"])
def retriever(request):
    return request.getfixturevalue(request.param)


async def put_as(retriever, tenant, document_id, text, collection="papers", key=None):
    job = await retriever.put_document(tenant, collection, upload(document_id, text), key)
    while not job.ended:
        await asyncio.sleep(0.002)
        job = await retriever.get_job(tenant, job.job_id)
    return job


async def refused(call) -> tuple[type, str, str | None]:
    with pytest.raises(RagtreeError) as caught:
        await call
    return caught.type, caught.value.message, caught.value.param


async def found(retriever, tenant, collection):
    request = SearchRequest(tenant, collection, "secret words", 5)
    return [candidates async for candidates in retriever.search(request)][-1]


@pytest.mark.parametrize("has_collection", [False, True])
async def test_other_tenants_documents_are_refused_like_unknown_ones(retriever, has_collection):
    job = await put_as(retriever, OWNER, "secret", "secret words")
    if has_collection:
        await put_as(retriever, CURIOUS, "own", "other words")
    for call in (retriever.get_document, retriever.chunks, retriever.delete_document):
        foreign = await refused(call(CURIOUS, "papers", "secret"))
        await retriever.get_document(OWNER, "papers", "secret")
        kind, message, param = await refused(call(CURIOUS, "papers", "never-was"))
        assert foreign == (kind, message.replace("never-was", "secret"), param)
        assert issubclass(kind, NotFound)
    foreign = await refused(retriever.get_job(CURIOUS, job.job_id))
    never = job.job_id[:-4] + "0000"
    kind, message, param = await refused(retriever.get_job(CURIOUS, never))
    assert foreign == (kind, message.replace(never[-36:], job.job_id[-36:]), param)


async def test_other_tenants_documents_are_not_listed_or_found(retriever):
    await put_as(retriever, OWNER, "secret", "secret words")
    assert {info.name for info in await retriever.list_collections(CURIOUS)} == {"default"}
    for call in (retriever.list_documents(CURIOUS, "papers", 10), found(retriever, CURIOUS, "papers")):
        assert issubclass((await refused(call))[0], NotFound)
    await put_as(retriever, CURIOUS, "own", "other words")
    assert [info.document_id for info in (await retriever.list_documents(CURIOUS, "papers", 10)).documents] == ["own"]
    assert {chunk.document_id for chunk in (await found(retriever, CURIOUS, "papers")).docs} == {"own"}


async def test_idempotency_keys_are_separate_per_tenant(retriever):
    job = await put_as(retriever, OWNER, "secret", "secret words", key="key")
    other = await put_as(retriever, CURIOUS, "own", "other words", key="key")
    same = await put_as(retriever, CURIOUS, "secret", "secret words", key="key-2")
    assert len({job.job_id, other.job_id, same.job_id}) == 3
    # The same text is new for this tenant.
    assert (same.stored, same.unchanged) == (1, 0)
