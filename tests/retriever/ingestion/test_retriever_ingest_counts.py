"""The statistics of a retriever and of shards."""

import asyncio
import shutil

import pytest
from retriever_cases import TENANT, lines, put, put_lines, running
from sharded_cases import ScriptedShard, running_shards, sharded
from varied import varied

from protocol.documents import RetrieverStats
from protocol.errors import RetrieverNotReady
from retriever.embedding.hashing import HashingEmbedder
from retriever.settings import HashingSettings


async def counted(retriever, **expected: int) -> None:
    """Wait for these counts. They change just after the commit that ends a job."""
    async with asyncio.timeout(10):
        while (await retriever.stats()).ingested != expected:
            await asyncio.sleep(0.002)


async def test_documents_are_counted_by_outcome(tmp_path):
    async with running(tmp_path) as retriever:
        assert (await retriever.stats()).ingested == {"stored": 0, "unchanged": 0, "failed": 0}
        await put(retriever, "a", "elephant")
        await put(retriever, "a", "elephant")
        await put(retriever, "a", "giraffe")
        await counted(retriever, stored=2, unchanged=1, failed=0)
        batch = lines([{"id": "b", "text": "zebra"}]) + b"\nno document\n{}\n"
        await retriever.put_batch(TENANT, "default", batch, "key")
        await retriever.put_batch(TENANT, "default", batch, "key")
        await counted(retriever, stored=3, unchanged=1, failed=2)


async def test_documents_refused_by_a_full_disk_count_as_failed(tmp_path):
    wide = HashingEmbedder(varied(HashingSettings, dimension=2048))
    changes = {"max_database_bytes": 300_000, "group_documents": 5}
    async with running(tmp_path, wide, **changes) as retriever:
        job = await put_lines(retriever, [{"id": f"d{n:02}", "text": f"number{n} text"} for n in range(60)])
        assert job.failed_documents
        await counted(retriever, stored=job.stored, unchanged=0, failed=job.failed_documents)


async def test_stats_report_the_queue_and_the_disk(tmp_path):
    async with running(tmp_path) as retriever:
        with retriever._ingestion.ingester._group_lock:
            await retriever.put_batch(TENANT, "default", lines([{"id": f"d{n}", "text": "x"} for n in range(7)]))
            stats = await retriever.stats()
        assert stats.queued == 7
        assert stats.disk_bytes == shutil.disk_usage(tmp_path).total
        assert 0 < stats.disk_free_bytes < stats.disk_bytes
        await counted(retriever, stored=7, unchanged=0, failed=0)
        assert (await retriever.stats()).queued == 0


async def test_counts_of_shards_are_added_up(tmp_path):
    async with running_shards(tmp_path) as (retriever, shards):
        job = await retriever.put_batch(TENANT, "default", lines([{"id": f"d{n}", "text": "x"} for n in range(30)]))
        assert job.total == 30
        await counted(retriever, stored=30, unchanged=0, failed=0)
        assert all([(await shard.stats()).ingested["stored"] for shard in shards])


class StatsShard(ScriptedShard):
    def __init__(self, *stats: int) -> None:
        super().__init__()
        self._stats = RetrieverStats({"stored": 1}, *stats)

    async def stats(self) -> RetrieverStats:
        return self._stats


async def test_stats_report_the_fullest_disk():
    stats = await sharded(StatsShard(1, 1000, 500), StatsShard(2, 10_000, 600)).stats()
    assert stats == RetrieverStats({"stored": 2}, 3, 10_000, 600)


async def test_stats_fail_if_a_shard_is_lost():
    lost = StatsShard(2, 10_000, 600)
    lost.missing = RetrieverNotReady("away")
    retriever = sharded(StatsShard(1, 1000, 500), lost)
    with pytest.raises(RetrieverNotReady):
        await retriever.ready()
    with pytest.raises(RetrieverNotReady):
        await retriever.stats()
