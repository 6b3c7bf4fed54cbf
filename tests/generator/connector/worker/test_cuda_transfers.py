"""Loads and saves of a GPU's blocks: nothing is published, checked or reported while a copy is under way."""

import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("vllm")

import torch
from kv_layouts import BLOCKS, TOKENS, caches_in, writer_of
from late_copies import LateCopies
from reads import donor_pages, piece_of

from generator.connector.blocks.cpu_blocks import CpuBlocks
from generator.connector.blocks.cuda_blocks import CudaBlocks
from generator.connector.blocks.paged_blocks import EngineCache
from generator.connector.blocks.staged_pages import StagedRows
from generator.connector.step_jobs import DonorPages, Load, LoadResult, Piece, Transfer
from generator.connector.worker.background_loads import BackgroundLoads
from generator.connector.worker.tier_jobs import TierJobs
from generator.tiers.arena import HostArena
from generator.tiers.base import TierFull
from generator.tiers.disk import DiskTier
from protocol.kv import KvNode, LostCopy, Pages, Paging
from protocol.tiers import Tier

PATIENCE_S = 10.0
NODE = KvNode("aa", "tenant", ("aa",), 0, 3 * TOKENS - 1)
PAGES, LATER = Pages((4, 1, 2), 7), Pages((4, 1, 2), 8)


class Worker:
    """The blocks of a GPU, an arena and a disk."""

    def __init__(self, folder: Path, layout: str, threads: int = 2, free: int = 1 << 20) -> None:
        caches = caches_in(layout, torch.bfloat16)
        self.copies = LateCopies(free)
        self.blocks = CudaBlocks(EngineCache(caches, BLOCKS, Paging(TOKENS), writer_of), self.copies)
        self._on_cpu = CpuBlocks(EngineCache(caches, BLOCKS, Paging(TOKENS), writer_of))
        size = self.blocks.page_bytes
        self.arena = HostArena(folder / "arena.kv", "weights", Paging(TOKENS), size, 8, self.blocks.pin)
        self.disk = DiskTier(folder / "disk", "weights", Paging(TOKENS), size, 1 << 20)
        tiers = {Tier.HOST: self.arena, Tier.DISK: self.disk}
        self.jobs = TierJobs(self.blocks, tiers)
        self.loads = BackgroundLoads(self.blocks, tiers, threads, self._load_ended, self._stage)
        self.staged: dict[int, StagedRows] = {}
        self._ended = threading.Event()
        self.result = LoadResult(0.0)
        self.failed: set[int] = set()
        self.under_way_at_end = -1

    def close(self) -> None:
        self.loads.close()
        self.arena.close()
        self.disk.close()

    def load(self, *pieces: Piece, donors: tuple[DonorPages, ...] = ()) -> None:
        """Load, and wait until the load has ended."""
        self.loads.start(Load("request", pieces, donors=donors))
        assert self._ended.wait(PATIENCE_S)

    def page(self, block: int, tokens: int = TOKENS) -> np.ndarray:
        page = np.empty(self.blocks.page_bytes, np.uint8)
        self._on_cpu.read(block, page, tokens)
        return page

    def pages(self, *blocks: int) -> list[np.ndarray]:
        """The pages of blocks that hold the node, whose last token is missing."""
        return [self.page(block, min(TOKENS, NODE.tokens - at * TOKENS)) for at, block in enumerate(blocks)]

    def _stage(self, _request: str, rows: dict[int, StagedRows]) -> None:
        self.staged.update(rows)

    def _load_ended(self, _request: str, result: LoadResult, failed: set[int]) -> None:
        self.result, self.failed, self.under_way_at_end = result, failed, self.copies.under_way
        self._ended.set()


@pytest.fixture(params=["BLHNC", "LBNHC", "K and V, blocks"])
def worker(request, tmp_path):
    worker = Worker(tmp_path, request.param)
    yield worker
    worker.close()


def saved(tier: Tier, blocks: tuple[int, ...]) -> Transfer:
    return Transfer(1, NODE.key, Tier.GPU, tier, NODE, blocks, PAGES)


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DISK])
def test_a_node_is_published_when_its_bytes_have_arrived(worker, tier):
    kept = {Tier.HOST: worker.arena, Tier.DISK: worker.disk}[tier]
    published = []
    worker.copies.before_copying = lambda: published.append(kept.has(NODE.key, PAGES))
    worker.jobs.transfer(saved(tier, (5, 0, 3)))
    assert published
    assert not any(published)
    with kept.reading(NODE.key, PAGES) as reader:
        for index, page in enumerate(worker.pages(5, 0, 3)):
            assert (reader.page(index) == page).all()


def test_a_save_that_fails_leaves_no_copy_under_way(worker, monkeypatch):
    whole = worker.arena.writing

    @contextmanager
    def writing(node, pages):
        with whole(node, pages) as writer:
            real = writer.page

            def page(index):
                if index == 2:
                    raise TierFull("no room")
                return real(index)

            writer.page = page
            try:
                yield writer
            finally:
                # Now the pages are freed, and the next writer may take them.
                assert worker.copies.under_way == 0

    monkeypatch.setattr(worker.arena, "writing", writing)
    with pytest.raises(TierFull):
        worker.jobs.transfer(saved(Tier.HOST, (5, 0, 3)))


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DISK])
def test_a_load_ends_when_its_blocks_are_filled(worker, tier):
    worker.jobs.transfer(saved(tier, (5, 0, 3)))
    expected = worker.pages(5, 0, 3)
    worker.load(piece_of(NODE.key, tier, 0, (1, 6, 2), PAGES))
    assert worker.under_way_at_end == 0
    assert (worker.result.lost, worker.failed) == ((), set())
    for block, page in zip((1, 6, 2), expected, strict=True):
        assert (worker.page(block) == page).all()


@pytest.mark.parametrize("free", [1 << 20, 0])
def test_a_load_ends_when_the_pages_of_its_donors_are_there(tmp_path, free):
    worker = Worker(tmp_path, "LBNHC", free=free)
    for tier in (Tier.HOST, Tier.DISK):
        worker.jobs.transfer(saved(tier, (5, 0, 3)))
    donors = tuple(
        donor_pages(NODE.key, ("tenant", "aa"), tier, 0, start, start + NODE.tokens, PAGES, blocks)
        for tier, start, blocks in ((Tier.HOST, 100, ()), (Tier.DISK, 200, ()), (Tier.GPU, 300, (5, 0, 3)))
    )
    missing = donor_pages("bb", ("tenant", "bb"), Tier.DISK, 0, 400, 400 + NODE.tokens)
    worker.load(donors=(donors[0], missing, *donors[1:]))
    assert worker.under_way_at_end == 0
    assert worker.result.lost == (missing.copy,)
    assert set(worker.staged) == {100, 200, 300}
    for start, rows in worker.staged.items():
        pages = rows.staged.pages[rows.numbers]
        expected = worker.pages(5, 0, 3) if start < 300 else [worker.page(block) for block in (5, 0, 3)]
        assert (pages.numpy() == expected).all()
    worker.close()


def test_a_load_ends_if_there_is_no_memory_for_its_donors(tmp_path, monkeypatch):
    worker = Worker(tmp_path, "LBNHC", free=0)
    worker.jobs.transfer(saved(Tier.HOST, (5, 0, 3)))
    donor = donor_pages(NODE.key, ("tenant", "aa"), Tier.HOST, 0, 100, 100 + NODE.tokens, PAGES)

    def pinned(self, size: int) -> None:
        raise RuntimeError("no memory can be pinned")

    monkeypatch.setattr(LateCopies, "pinned", pinned)
    worker.load(donors=(donor,))
    assert worker.staged == {}
    worker.close()


def test_copies_wait_for_the_steps_that_may_still_use_the_blocks(worker):
    worker.jobs.transfer(saved(Tier.HOST, (5, 0, 3)))
    worker.copies.log.clear()
    worker.load(piece_of(NODE.key, Tier.HOST, 0, (1, 6, 2), PAGES))
    log = worker.copies.log
    assert log[0] == "fence"
    for share in range(log.count("submit")):
        submits = [at for at, event in enumerate(log) if event == "submit"]
        assert log[: submits[share]].count("held") > share


def test_pages_that_change_while_they_are_copied_are_lost(worker):
    worker.jobs.transfer(saved(Tier.HOST, (5, 0, 3)))

    def overwrite() -> None:
        worker.copies.before_copying = lambda: None
        with worker.arena.writing(NODE, LATER) as writer:
            for index in range(3):
                writer.page(index)[:] = 0

    worker.copies.before_copying = overwrite
    worker.load(piece_of(NODE.key, Tier.HOST, 0, (1, 6, 2), PAGES))
    assert worker.result.lost == (LostCopy(NODE.key, Tier.HOST),)
    assert worker.failed


def test_a_load_that_fails_in_the_middle_ends_with_no_copy_under_way(tmp_path):
    worker = Worker(tmp_path, "BLHNC", threads=1)
    worker.jobs.transfer(saved(Tier.DISK, (5, 0, 3)))
    (file,) = tmp_path.rglob("aa*.safetensors")
    with file.open("r+b") as opened:
        opened.seek(-1, 2)
        opened.write(b"\xff")
    worker.load(piece_of(NODE.key, Tier.DISK, 0, (1, 6, 2)))
    assert worker.under_way_at_end == 0
    assert worker.failed == {1, 6, 2}
    worker.close()
