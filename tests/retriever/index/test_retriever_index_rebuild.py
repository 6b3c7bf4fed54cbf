"""Indexes are rebuilt in the background and include what changes meanwhile."""

import asyncio
import itertools
import threading

import pytest
from retriever_cases import TENANT, ids, index_of, live_ids, put, put_lines, running, search, settings, tales
from varied import varied

from retriever.build import build_retriever
from retriever.index.builder import IndexBuilder
from retriever.settings import IndexSettings

FEW = {"ivf_threshold": 32, "probe_share": 1.0, "retrain_growth": 1.3}
SMALL = varied(IndexSettings, **FEW)


class Gate:
    """Blocks every build until ``open`` is set. A build then raises the next of ``errors``, if any."""

    def __init__(self, monkeypatch):
        self.open = threading.Event()
        self.reached = threading.Event()
        self.errors = []
        build = IndexBuilder.build

        def gated(builder, collection):
            index = build(builder, collection)
            self.reached.set()
            assert self.open.wait(20)
            if self.errors:
                raise self.errors.pop()
            return index

        monkeypatch.setattr(IndexBuilder, "build", gated)


@pytest.fixture
def gate(monkeypatch):
    return Gate(monkeypatch)


async def test_ingestion_and_searches_continue_during_a_rebuild(tmp_path, gate):
    async with running(tmp_path, index=SMALL) as retriever:
        await put_lines(retriever, tales(0, 40))
        assert await asyncio.to_thread(gate.reached.wait, 20)
        await put(retriever, "late", "a lighthouse in the fog")
        await retriever.delete_document(TENANT, "default", "d7")
        assert index_of(retriever).kind == "flat"
        assert ids(await search(retriever, "lighthouse", top_k=1)) == ["late"]
        gate.open.set()
        await retriever.wait_for_indexes()
        assert index_of(retriever).kind == "ivf"
        assert index_of(retriever).ids().tolist() == live_ids(retriever)
        assert ids(await search(retriever, "lighthouse", top_k=1)) == ["late"]
        assert "d7" not in ids(await search(retriever, "tale 7 of words", top_k=50))


async def test_index_outgrown_during_its_build_is_rebuilt_again(tmp_path, gate):
    async with running(tmp_path, index=SMALL) as retriever:
        await put_lines(retriever, tales(0, 40))
        assert await asyncio.to_thread(gate.reached.wait, 20)
        await put_lines(retriever, tales(40, 200))
        gate.open.set()
        await retriever.wait_for_indexes()
        assert index_of(retriever).trained.vectors == 200


async def test_index_becomes_flat_again_after_many_deletions(tmp_path):
    async with running(tmp_path, index=SMALL) as retriever:
        await put_lines(retriever, tales(0, 60))
        await retriever.wait_for_indexes()
        for number in range(50):
            await retriever.delete_document(TENANT, "default", f"d{number}")
        await put(retriever, "last", "the last tale")
        await retriever.wait_for_indexes()
        assert (index_of(retriever).kind, index_of(retriever).size) == ("flat", 11)


async def test_hnsw_is_rebuilt_without_removed_vectors(tmp_path):
    async with running(tmp_path, index=varied(IndexSettings, kind="hnsw", removed_share=0.3)) as retriever:
        await put_lines(retriever, tales(0, 60))
        await retriever.wait_for_indexes()
        before = index_of(retriever)
        assert before.kind == "hnsw"
        for number in range(20):
            await retriever.delete_document(TENANT, "default", f"d{number}")
        await put(retriever, "last", "the last tale")
        await retriever.wait_for_indexes()
        assert index_of(retriever) is not before
        assert index_of(retriever).ids().tolist() == live_ids(retriever)
    async with running(tmp_path, index=IndexSettings(kind="hnsw")) as retriever:
        assert (index_of(retriever).kind, index_of(retriever).size) == ("hnsw", 41)
        assert ids(await search(retriever, "the last tale", top_k=1)) == ["last"]


async def test_failed_build_is_retried_later(tmp_path, gate, monkeypatch):
    gate.errors.append(RuntimeError("no room"))
    gate.open.set()
    async with running(tmp_path, index=SMALL) as retriever:
        await put_lines(retriever, tales(0, 40))
        await retriever.wait_for_indexes()
        await put(retriever, "early", "too early to try again")
        await retriever.wait_for_indexes()
        assert index_of(retriever).kind == "flat"
        retriever._ingestion.ingester._catalog._rebuilder._clock = itertools.count(10**9).__next__
        await put(retriever, "late", "a lighthouse in the fog")
        await retriever.wait_for_indexes()
        assert index_of(retriever).kind == "ivf"
        assert ids(await search(retriever, "lighthouse", top_k=1)) == ["late"]


async def test_closing_during_a_build_discards_it(tmp_path, gate):
    retriever = build_retriever(settings(index=SMALL), tmp_path)
    await retriever.start()
    await put_lines(retriever, tales(0, 40))
    assert await asyncio.to_thread(gate.reached.wait, 20)
    closing = asyncio.ensure_future(retriever.close())
    # After this, nothing installs the rebuilt index.
    await asyncio.to_thread(retriever._ingestion.thread._thread.join, 20)
    gate.open.set()
    await closing
    assert not list((tmp_path / "indexes").glob("*"))
    async with running(tmp_path, index=SMALL) as retriever:
        assert index_of(retriever).ids().tolist() == live_ids(retriever)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ivf", {}),
        pytest.param("mapped", {"on_disk_bytes": 1}, marks=pytest.mark.prove("retriever/index/")),
        pytest.param("hnsw", {"kind": "hnsw"}, marks=pytest.mark.prove("retriever/index/")),
    ],
)
async def test_indexes_are_rebuilt_under_uploads_deletions_and_searches(tmp_path, kind, options):
    chosen = varied(IndexSettings, **FEW, removed_share=0.1, stage_ms=1e-6, **options)
    async with running(tmp_path, index=chosen) as retriever:
        await put(retriever, "sure", "a lighthouse in the fog")
        done = asyncio.Event()
        searches = 0

        async def keep_searching():
            nonlocal searches
            while not done.is_set():
                assert ids(await search(retriever, "lighthouse in the fog", top_k=3))[0] == "sure"
                searches += 1

        async def keep_changing():
            for round_ in range(5):
                await put_lines(retriever, tales(30 * round_, 30 * round_ + 45))
                for number in range(30 * round_, 30 * round_ + 20):
                    await retriever.delete_document(TENANT, "default", f"d{number}")
            done.set()

        await asyncio.gather(keep_searching(), keep_searching(), keep_changing())
        await put(retriever, "end", "the end")
        await retriever.wait_for_indexes()
        assert searches
        assert index_of(retriever).kind == kind
        assert index_of(retriever).ids().tolist() == live_ids(retriever)
