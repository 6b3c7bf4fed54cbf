"""Idempotency keys and jobs in Redis, next to a real retriever, whose store decides."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis_cases import PATIENT_S, Linked, linked
from redis_server import RedisServer

from gateway.stores.uploads import Uploads
from protocol.documents import DocumentUpload, IngestJob
from protocol.errors import IdempotencyMismatch, RetrieverNotReady, Unavailable, UnreadableDocument
from protocol.parts import Retriever
from retriever.build import build_retriever
from retriever.settings import HashingSettings, RetrieverSettings, ShardSettings
from retriever.sharding.sharded_retriever import ShardedRetriever
from services.redis import uploads as redis_uploads
from services.redis.uploads import KEPT_S, STORE, RedisUploadRecords

JOB = IngestJob("job-1", "c", "in_progress", 3, 1, 0, 0, 1.0, 2.0)


@asynccontextmanager
async def recording(
    server: RedisServer, timeout_s: float = PATIENT_S
) -> AsyncIterator[tuple[RedisUploadRecords, Linked]]:
    async with linked(server, timeout_s=timeout_s) as its:
        yield RedisUploadRecords(its.link, "test"), its


async def test_key_is_claimed_and_then_bound_to_its_job(redis_server):
    async with recording(redis_server) as (records, _), recording(redis_server) as (others, _):
        assert await records.begin("acme", "k", "h1") is None
        assert await others.begin("acme", "k", "h1") is None, "the same upload is never refused"
        with pytest.raises(Unavailable):
            await others.begin("acme", "k", "h2")
        assert await others.begin("other", "k", "h2") is None, "another tenant's key"
        await records.accepted("acme", "k", "h1", "job-1")
        assert await others.begin("acme", "k", "h1") == "job-1"
        assert await others.begin("acme", "k", "h2") is None, "the retriever decides which upload has the key"
        assert await others.begin("acme", "k", "h1") == "job-1", "the other upload did not replace it"


async def test_refused_upload_releases_only_its_own_key(redis_server):
    async with recording(redis_server) as (records, _):
        await records.begin("acme", "k", "h1")
        await records.refused("acme", "k", "h2")
        with pytest.raises(Unavailable):
            await records.begin("acme", "k", "h2")
        await records.refused("acme", "k", "h1")
        assert await records.begin("acme", "k", "h2") is None
        await records.accepted("acme", "k", "h2", "job-2")
        await records.refused("acme", "k", "h2")
        assert await records.begin("acme", "k", "h2") == "job-2", "what is durable stays so"


async def test_claim_expires(redis_server, monkeypatch):
    monkeypatch.setattr(redis_uploads, "CLAIM_S", 0.05)
    async with recording(redis_server) as (records, _):
        await records.begin("acme", "k", "h1")
        give_up = time.monotonic() + 5
        while True:
            try:
                assert await records.begin("acme", "k", "h2") is None
                break
            except Unavailable:
                assert time.monotonic() < give_up
                await asyncio.sleep(0.01)


async def test_jobs_are_visible_only_to_their_tenant(redis_server):
    async with recording(redis_server) as (records, _):
        await records.saw("acme", JOB)
        assert await records.last_seen("acme", "job-1") == JOB
        assert await records.last_seen("other", "job-1") is None
        assert await records.last_seen("acme", "job-2") is None


async def test_keys_are_digests_and_expire(redis_server):
    async with recording(redis_server) as (records, _):
        await records.begin("acme", "secret-key", "h1")
        await records.accepted("acme", "secret-key", "h1", "job-1")
        await records.saw("acme", JOB)
    with redis_server.client() as client:
        keys = client.keys("*")
        assert sorted(key.split(b":")[:2] for key in keys) == [[b"test", b"job"], [b"test", b"key"]]
        assert not [key for key in keys if b"acme" in key or b"secret" in key or b"job-1" in key]
        assert all(0 < client.ttl(key) <= KEPT_S for key in keys)


async def test_record_of_another_version_is_ignored(redis_server):
    async with recording(redis_server) as (records, _):
        await records.saw("acme", JOB)
        with redis_server.client() as client:
            (key,) = client.keys("*")
            client.set(key, b'{"something": "else"}')
        assert await records.last_seen("acme", "job-1") is None


@pytest.mark.parametrize("lost", ["kill", "hang", "fill"])
async def test_records_are_empty_without_redis(redis_server, lost: str):
    timeout_s = 3.0
    async with recording(redis_server, timeout_s=timeout_s) as (records, its):
        getattr(redis_server, lost)()
        began = time.monotonic()
        assert await records.begin("acme", "k", "h1") is None
        await records.accepted("acme", "k", "h1", "job-1")
        await records.refused("acme", "k", "h1")
        await records.saw("acme", JOB)
        assert await records.last_seen("acme", "job-1") is None
        assert time.monotonic() - began < 2 * timeout_s, "one timeout for all of them"
        # A full server can be read, but three of the five calls write.
        assert its.errors(STORE) == (5 if lost != "fill" else 3)


class Looks:
    """A readiness check that found all parts."""

    def missing(self) -> dict[str, Exception]:
        return {}


def upload(text: str, document_id: str = "d") -> DocumentUpload:
    return DocumentUpload(document_id, text.encode(), "text/plain")


@asynccontextmanager
async def retrieving(folder: Path, shards: int = 1) -> AsyncIterator[Retriever]:
    settings = RetrieverSettings(embedder=HashingSettings())
    parts = [build_retriever(settings, folder / str(shard)) for shard in range(shards)]
    for part in parts:
        await part.start()
    try:
        yield parts[0] if shards == 1 else ShardedRetriever(parts, ShardSettings(count=shards), 5.0)
    finally:
        for part in parts:
            await part.close()


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("redis_there", [True, False])
async def test_one_key_through_two_gateways_makes_one_job(redis_server, tmp_path, shards: int, redis_there: bool):
    if not redis_there:
        redis_server.kill()
    async with (
        recording(redis_server) as (one, _),
        recording(redis_server) as (other, _),
        retrieving(tmp_path, shards) as retriever,
    ):
        gateways = [Uploads(retriever, records, Looks()) for records in (one, other)]
        batch = b"".join(b'{"id": "d%d", "text": "text %d"}\n' % (n, n) for n in range(10))
        sent = [gateway.put_batch("acme", "c", batch, "k") for gateway in gateways * 3]
        seen = await asyncio.gather(*sent)
        assert len({each.job.job_id for each in seen}) == 1
        assert not any(each.stale for each in seen)
        with pytest.raises(IdempotencyMismatch):
            await gateways[1].put_batch("acme", "c", b'{"id": "x", "text": "x"}\n', "k")


class Dying:
    """Upload records whose gateway is killed in one of the calls, before or after its effect."""

    def __init__(self, records: RedisUploadRecords, at: str, after: bool) -> None:
        self._records, self._at, self._after = records, at, after

    def __getattr__(self, name: str):
        async def call(*arguments):
            if name == self._at and not self._after:
                raise asyncio.CancelledError
            result = await getattr(self._records, name)(*arguments)
            if name == self._at:
                raise asyncio.CancelledError
            return result

        return call


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", ["begin", "saw", "accepted"])
async def test_dying_gateway_neither_loses_nor_doubles_an_upload(redis_server, tmp_path, at: str, after: bool):
    async with recording(redis_server) as (records, _), retrieving(tmp_path) as retriever:
        with pytest.raises(asyncio.CancelledError):
            await Uploads(retriever, Dying(records, at, after), Looks()).put_document("acme", "c", upload("one"), "k")
        again = Uploads(retriever, records, Looks())
        first = await again.put_document("acme", "c", upload("one"), "k")
        assert (await again.put_document("acme", "c", upload("one"), "k")).job.job_id == first.job.job_id
        async with asyncio.timeout(10):
            while not (await again.job("acme", first.job.job_id)).job.ended:
                await asyncio.sleep(0.01)
        assert (await retriever.get_document("acme", "c", "d")).text == "one"


async def test_lost_upload_is_accepted_again(redis_server, tmp_path):
    async with recording(redis_server) as (records, _):
        async with retrieving(tmp_path / "lost") as retriever:
            await Uploads(retriever, records, Looks()).put_document("acme", "c", upload("one"), "k")
        # The retriever's disk is lost, and Redis still has the upload.
        async with retrieving(tmp_path / "fresh") as retriever:
            seen = await Uploads(retriever, records, Looks()).put_document("acme", "c", upload("one"), "k")
            assert not seen.stale
            assert (await retriever.get_job("acme", seen.job.job_id)).total == 1, "it was taken in anew"


async def test_refused_body_releases_its_key(redis_server, tmp_path):
    async with recording(redis_server) as (records, _), retrieving(tmp_path) as retriever:
        uploads = Uploads(retriever, records, Looks())
        with pytest.raises(UnreadableDocument):
            await uploads.put_document("acme", "c", upload("  "), "k")
        assert (await uploads.put_document("acme", "c", upload("better"), "k")).job.total == 1


async def test_last_seen_job_is_returned_while_the_retriever_is_down(redis_server, tmp_path):
    async with recording(redis_server) as (records, _), recording(redis_server) as (others, _):
        async with retrieving(tmp_path) as retriever:
            seen = (await Uploads(retriever, records, Looks()).put_document("acme", "c", upload("one"), "k")).job
        # A closed retriever raises RetrieverNotReady.
        uploads = Uploads(retriever, others, Looks())
        assert await uploads.job("acme", seen.job_id) == (seen, True)
        assert await uploads.put_document("acme", "c", upload("one"), "k") == (seen, True)
        for unknown in (
            uploads.job("other", seen.job_id),
            uploads.put_document("acme", "c", upload("one"), "another key"),
            uploads.put_document("acme", "c", upload("one"), None),
            uploads.put_document("acme", "c", upload("two"), "k"),
        ):
            with pytest.raises(RetrieverNotReady):
                await unknown
