"""Documents in shards: placement, and jobs, listings and orphans that look like those of one retriever."""

import asyncio
from contextlib import suppress

import pytest
from retriever_cases import SMALL, TENANT, ended, lines, put, put_lines, running, search, upload
from sharded_cases import PARTIAL, ScriptedShard, running_shards, sharded

from protocol.documents import DEFAULT_COLLECTION, Orphan
from protocol.errors import (
    EmptyDocument,
    IdempotencyMismatch,
    InternalError,
    InvalidRequest,
    NoDocuments,
    RetrieverNotReady,
    ShardTimeout,
    StorageFull,
    UnknownCollection,
    UnknownDocument,
    UnknownFilterKey,
    UnknownJob,
)
from protocol.filters import Comparison, Compound
from protocol.retrieval import StoreRevision
from retriever.settings import ShardSettings
from retriever.sharding.assignment import shard_of, split_batch
from retriever.sharding.sharded_retriever import ShardedRetriever
from retriever.store.database import Database
from retriever.store.jobs import Jobs

ANIMALS = ("elephant", "giraffe", "zebra", "lion", "tiger", "bear", "wolf", "fox", "owl", "eagle", "hawk", "swan")


def animals(**fields):
    return [{"id": name, "text": f"The {name} is an animal.", **fields} for name in ANIMALS]


def placed(document_id, count=3, collection="default"):
    return shard_of(count, TENANT, collection, document_id)


async def listed(retriever, collection="default"):
    with suppress(UnknownCollection):
        return {info.document_id for info in (await retriever.list_documents(TENANT, collection, 1000)).documents}
    return set()


def test_shard_of_a_document_never_changes():
    # Otherwise existing documents could no longer be found.
    assert [shard_of(7, "acme", "default", f"d{n}") for n in range(10)] == [4, 3, 5, 3, 4, 0, 4, 3, 1, 1]


def test_documents_are_spread_evenly():
    counts = [0] * 4
    for number in range(4000):
        counts[shard_of(4, "acme", "default", f"d{number}")] += 1
    assert all(900 < count < 1100 for count in counts)


async def test_document_is_only_in_its_shard(tmp_path):
    async with running_shards(tmp_path) as (retriever, shards):
        job = await put_lines(retriever, animals())
        assert (job.status, job.total, job.stored) == ("completed", len(ANIMALS), len(ANIMALS))
        await put(retriever, "newt", "A newt got better.")
        for number, shard in enumerate(shards):
            assert await listed(shard) == {name for name in (*ANIMALS, "newt") if placed(name) == number}
        assert (await retriever.get_document(TENANT, "default", "newt")).text == "A newt got better."
        (chunk,) = (await retriever.chunks(TENANT, "default", "newt")).chunks
        assert (await search(retriever, "newt got better", top_k=1)).docs == (chunk,)
        await retriever.delete_document(TENANT, "default", "newt")
        with pytest.raises(UnknownDocument):
            await retriever.get_document(TENANT, "default", "newt")


@pytest.mark.parametrize("filters", [None, Comparison("even", "eq", True)])
async def test_search_finds_the_same_as_one_retriever(tmp_path, filters):
    documents = [
        {"id": f"d{n}", "text": f"fact {n} of {n % 7} and {ANIMALS[n % 12]}", "attributes": {"even": n % 2 == 0}}
        for n in range(60)
    ]
    async with running(tmp_path / "one") as one, running_shards(tmp_path / "many") as (many, _):
        for retriever in (one, many):
            await put_lines(retriever, documents)
        for question in ("fact 7 of the wolf", "giraffe", "animals of 3"):
            expected = await search(one, question, top_k=60, filters=filters)
            merged = await search(many, question, top_k=60, filters=filters)
            assert merged.scores == pytest.approx(expected.scores, abs=1e-6)
            of_each = [dict(zip((c.document_id for c in s.docs), s.scores, strict=True)) for s in (merged, expected)]
            assert of_each[0] == pytest.approx(of_each[1], abs=1e-6)


async def test_chunk_ids_are_unique_over_all_shards(tmp_path):
    async with running_shards(tmp_path) as (retriever, _):
        await put_lines(retriever, animals())
        found = await search(retriever, "animal", top_k=100)
        assert len({chunk.chunk_id for chunk in found.docs}) == len(ANIMALS)
        assert all(chunk.chunk_id.startswith(f"{placed(chunk.document_id)}.") for chunk in found.docs)


async def test_filter_applies_in_shards_without_its_attribute(tmp_path):
    async with running_shards(tmp_path) as (retriever, _):
        await put_lines(retriever, animals())
        await put(retriever, "newt", "The newt is an animal.", attributes={"wet": True})
        dry = await search(retriever, "animal", top_k=100, filters=Comparison("wet", "ne", True))
        assert {chunk.document_id for chunk in dry.docs} == set(ANIMALS)
        await put(retriever, "dodo", "The dodo is an animal.", attributes={"extinct": True})
        both = Compound("or", (Comparison("wet", "eq", True), Comparison("extinct", "eq", True)))
        assert {c.document_id for c in (await search(retriever, "animal", filters=both)).docs} == {"newt", "dodo"}
        with pytest.raises(UnknownFilterKey, match="colour"):
            await search(retriever, "animal", filters=Compound("or", (both, Comparison("colour", "eq", "red"))))


async def test_invalid_line_is_reported_with_its_number_in_the_batch(tmp_path):
    batch = [line for name in ANIMALS for line in (lines([{"id": name, "text": name}]), b"", b"\r")]
    batch[3] = b'{"id": "giraffe"'
    batch[12] = b'{"id": "tiger"}'
    batch[15] = lines([{"id": "bear", "text": " "}])
    batch.append(b"\xff")
    body = b"\xef\xbb\xbf" + b"\n".join(batch)
    async with running(tmp_path / "one") as one, running_shards(tmp_path / "many") as (many, _):
        first, second = [await ended(each, await each.put_batch(TENANT, "default", body)) for each in (one, many)]
    assert [error.line for error in first.errors] == [4, 13, 16, 37]
    assert first.errors == second.errors
    assert (first.status, first.total, first.stored, first.failed_documents) == (
        *(second.status, second.total, second.stored, second.failed_documents),
    )


async def test_batch_of_invalid_lines_fails_and_empty_batch_is_refused(tmp_path):
    async with running_shards(tmp_path) as (retriever, _):
        job = await ended(retriever, await retriever.put_batch(TENANT, "default", b"not json\nnor this"))
        assert (job.status, job.total, [error.line for error in job.errors]) == ("failed", 2, [1, 2])
        with pytest.raises(EmptyDocument):
            await retriever.put_batch(TENANT, "default", b"\xef\xbb\xbf\n \r\n", "key")


def test_split_batch_keeps_the_order_of_lines():
    batch = lines([{"id": name, "text": str(n)} for n, name in enumerate(ANIMALS * 3)])
    parts = split_batch(batch, lambda name: len(name) % 2)
    whole = batch.split(b"\n")
    for shard, part in parts.items():
        expected = [line if len(ANIMALS[n % 12]) % 2 == shard else b"" for n, line in enumerate(whole)]
        assert part.split(b"\n") == expected[: part.count(b"\n") + 1]


async def test_job_id_names_its_shards(tmp_path):
    async with running_shards(tmp_path) as (retriever, _):
        job = await put_lines(retriever, animals())
        assert await retriever.get_job(TENANT, job.job_id) == job
        parts = job.job_id.split(".")
        assert len(parts) == 3
        names = ["job_1", "", "0-", "9-job_1", "0-job_1", ".".join(reversed(parts)), f"{parts[0]}.{parts[0]}"]
        for name in (*names, f"{job.job_id}.", f"{parts[0]}.1-job_gone"):
            with pytest.raises(UnknownJob):
                await retriever.get_job(TENANT, name)
        with pytest.raises(UnknownJob):
            await retriever.get_job("other", job.job_id)


def other_place(document_id):
    """The id of a document in another shard."""
    return next(name for name in ANIMALS if placed(name) != placed(document_id))


async def test_reused_key_returns_the_same_job_or_refuses_another_body(tmp_path):
    here, there = "elephant", other_place("elephant")
    one, both = lines([{"id": here, "text": "x"}]), lines([{"id": here, "text": "x"}, {"id": there, "text": "y"}])
    async with running_shards(tmp_path) as (retriever, _):
        job = await ended(retriever, await retriever.put_batch(TENANT, "default", one, "key"))
        assert await retriever.put_batch(TENANT, "default", one, "key") == job
        others = [lambda: retriever.put_batch(TENANT, "zoo", one, "key")]
        others += [
            lambda body=body: retriever.put_batch(TENANT, "default", body, "key") for body in (both, b"\n" + one)
        ]
        others += [
            lambda name=name: retriever.put_document(TENANT, "default", upload(name, "x"), "key")
            for name in (here, there)
        ]
        for another in others:
            with pytest.raises(IdempotencyMismatch):
                await another()
        assert await listed(retriever) == {here}
        assert (await retriever.put_batch("other", "default", both, "key")).job_id != job.job_id
        put_one = await retriever.put_document(TENANT, "default", upload(there, "x"), "another key")
        assert (
            await retriever.put_document(TENANT, "default", upload(there, "x"), "another key")
        ).job_id == put_one.job_id


async def test_key_claim_survives_a_restart(tmp_path):
    async with running(tmp_path) as shard:
        await shard.claim_key(TENANT, "key", "one body")
    async with running(tmp_path) as shard:
        await shard.claim_key(TENANT, "key", "one body")
        await shard.claim_key("other", "key", "another body")
        with pytest.raises(IdempotencyMismatch):
            await shard.claim_key(TENANT, "key", "another body")
    async with running(tmp_path, ingest={"job_retention_s": 1e-6}) as shard:
        await put(shard, "a", "elephant")
        await shard.claim_key(TENANT, "key", "another body")


def test_key_claim_outlives_its_jobs(tmp_path):
    now = [0.0]
    jobs, database = Jobs(lambda: now[0]), Database(tmp_path / "store.sqlite3")

    def claim(at: float, body: str) -> None:
        now[0] = at
        with database.write() as transaction:
            jobs.purge(transaction, older_than_s=10.0)
            jobs.claim_key(transaction, TENANT, "key", body)

    claim(0, "one body")
    # Its jobs may end at 9 and are kept until 19.
    with pytest.raises(IdempotencyMismatch):
        claim(18, "another body")
    claim(19, "one body")
    with pytest.raises(IdempotencyMismatch):
        claim(38, "another body")
    # The refused claim did not extend it.
    claim(40, "another body")
    database.close()


async def test_resent_batch_repairs_a_partial_upload(tmp_path):
    async with running_shards(tmp_path) as (retriever, shards):
        full = shards[placed("zebra")]
        put_batch = full.put_batch

        async def refuse(*_):
            raise StorageFull("no room")

        full.put_batch = refuse
        with pytest.raises(StorageFull):
            await retriever.put_batch(TENANT, "default", lines(animals()), "key")
        full.put_batch = put_batch
        job = await ended(retriever, await retriever.put_batch(TENANT, "default", lines(animals()), "key"))
        assert (job.status, job.total, job.stored) == ("completed", len(ANIMALS), len(ANIMALS))
        assert await listed(retriever) == set(ANIMALS)


async def test_batch_for_a_lost_shard_writes_nothing(tmp_path):
    async with running_shards(tmp_path) as (_, shards):
        lost = ScriptedShard()
        lost.missing = RetrieverNotReady("it is being restarted")
        retriever = ShardedRetriever([*shards[:2], lost], ShardSettings(count=3, **PARTIAL), ready_within_s=3.0)
        await retriever.ready()
        with pytest.raises(RetrieverNotReady):
            await retriever.put_batch(TENANT, "default", lines(animals()))
        assert [await listed(shard) for shard in shards] == [set(), set(), set()]


async def test_pages_list_all_documents_by_id(tmp_path):
    async with running_shards(tmp_path) as (retriever, _):
        await put_lines(retriever, animals())
        for limit in (1, 4, 5, 12, 13):
            seen, after = [], None
            while True:
                page = await retriever.list_documents(TENANT, "default", limit, after)
                seen += [info.document_id for info in page.documents]
                after = page.next_cursor
                if after is None:
                    break
                assert len(page.documents) == limit
            assert seen == sorted(ANIMALS)
        assert (await retriever.list_documents(TENANT, "default", 5, "zz")).documents == ()
        for limit in (0, 1001):
            with pytest.raises(InvalidRequest):
                await retriever.list_documents(TENANT, "default", limit)


async def test_collection_exists_if_any_shard_has_it(tmp_path):
    async with running_shards(tmp_path) as (retriever, _):
        await put(retriever, "elephant", "big", collection="zoo")
        await put_lines(retriever, animals(), collection="animals")
        infos = {info.name: (info.documents, info.chunks) for info in await retriever.list_collections(TENANT)}
        assert list(infos) == sorted(infos)
        assert infos == {DEFAULT_COLLECTION: (0, 0), "animals": (12, 12), "zoo": (1, 1)}
        assert len((await retriever.list_documents(TENANT, "zoo", 9)).documents) == 1
        for call in (retriever.get_document, retriever.chunks, retriever.delete_document):
            for name in ANIMALS[1:]:
                with pytest.raises(UnknownDocument):
                    await call(TENANT, "zoo", name)
            with pytest.raises(UnknownCollection):
                await call(TENANT, "nowhere", "elephant")
        with pytest.raises(UnknownCollection):
            await retriever.list_documents(TENANT, "nowhere", 9)
        with pytest.raises(UnknownCollection):
            await search(retriever, "big", collection="nowhere")
        with pytest.raises(NoDocuments):
            await search(retriever, "big")
        assert len((await search(retriever, "big", collection="zoo")).docs) == 1


async def test_orphans_are_forgotten_in_their_shard(tmp_path):
    async with running_shards(tmp_path, **SMALL) as (retriever, shards):
        await put_lines(retriever, animals())
        gone = {}
        for name in ANIMALS:
            (chunk,) = (await retriever.chunks(TENANT, "default", name)).chunks
            gone[name] = chunk.content_hash
            await retriever.delete_document(TENANT, "default", name)
        everything = await retriever.orphans(0, 100)
        assert {orphan.content_hash for orphan in everything} == set(gone.values())
        assert len({orphan.number for orphan in everything}) == len(ANIMALS)
        assert await retriever.orphans(3600, 100) == []
        assert await retriever.orphans(0, 5) == everything[:5]
        (of_fox,) = await retriever.orphans_of(TENANT, "default", "fox")
        assert of_fox in everything
        for _ in range(2):
            await retriever.forget_orphans([of_fox])
            left = {orphan.content_hash for orphan in await retriever.orphans(0, 100)}
            assert left == set(gone.values()) - {gone["fox"]}
        while some := await retriever.orphans(0, 5):
            await retriever.forget_orphans(some)
        assert [await shard.orphans(0, 9) for shard in shards] == [[], [], []]


class OrphanShard(ScriptedShard):
    """A shard with one orphan. It lists it, raises an error or waits."""

    def __init__(self, outcome: Exception | asyncio.Event | None = None) -> None:
        super().__init__()
        self.outcome = outcome
        self.asked = 0

    async def orphans(self, older_than_s: float, limit: int) -> list[Orphan]:
        self.asked += 1
        if isinstance(self.outcome, asyncio.Event):
            await self.outcome.wait()
        elif self.outcome is not None:
            raise self.outcome
        return [Orphan(7, TENANT, "content", StoreRevision("store", 7))]


@pytest.mark.parametrize("mode", ["error", "partial"])
@pytest.mark.parametrize("make", [lambda: RetrieverNotReady("lost"), asyncio.Event], ids=["lost", "silent"])
async def test_lost_shard_does_not_delay_the_orphans_of_others(make, mode):
    outcome = make()
    retriever = sharded(OrphanShard(), OrphanShard(outcome), OrphanShard(), on_lost=mode)
    assert [orphan.number for orphan in await retriever.orphans(0, 9)] == [21, 23]
    with pytest.raises((RetrieverNotReady, ShardTimeout)):
        await sharded(OrphanShard(outcome), OrphanShard(outcome)).orphans(0, 9)
    with pytest.raises(InternalError):
        await sharded(OrphanShard(), OrphanShard(InternalError("a defect"))).orphans(0, 9)


async def test_lost_shard_is_not_asked_for_orphans():
    up, down = OrphanShard(), OrphanShard()
    down.missing = InternalError("it cannot say")
    retriever = sharded(up, down, **PARTIAL)
    await retriever.ready()
    assert [orphan.number for orphan in await retriever.orphans(0, 9)] == [14]
    assert (up.asked, down.asked) == (1, 0)
    up.missing = RetrieverNotReady("lost, too")
    with pytest.raises(RetrieverNotReady):
        await retriever.ready()
    with pytest.raises((RetrieverNotReady, InternalError)):
        await retriever.orphans(0, 9)


async def test_failed_call_waits_for_the_other_shards():
    """The error is raised after the other calls have ended."""
    gate, ended_calls = asyncio.Event(), []

    class Slow(ScriptedShard):
        async def list_collections(self, tenant):
            await gate.wait()
            ended_calls.append(tenant)
            return []

    class Failing(ScriptedShard):
        async def list_collections(self, tenant):
            gate.set()
            raise RetrieverNotReady("lost")

    with pytest.raises(RetrieverNotReady):
        await sharded(Failing(), Slow()).list_collections(TENANT)
    assert ended_calls == [TENANT]
