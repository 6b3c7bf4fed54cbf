"""Background loads that several threads share: when one ends, every page is loaded, or its node is named as lost."""

import threading
import time

import numpy as np
import pytest

pytest.importorskip("vllm")

import torch
from reads import piece_of
from small_cache import small_cache

from generator.connector.step_jobs import Load, Piece, Purge, StepJobs
from generator.connector.worker import worker_side
from generator.connector.worker.worker_side import WorkerSide
from generator.tiers.base import NullTier
from generator.tiers.disk import DiskTier
from protocol.kv import KvMemory, KvNode, LostCopy, Paging
from protocol.tiers import Tier

BLOCKS, PAGE_TOKENS, PAGES = 20, 4, 6
PATIENCE_S = 10.0


@pytest.fixture(params=[1, 2, 5])
def threads(request):
    return request.param


class Loading:
    """A worker side over a small cache, and two nodes of six pages each on disk."""

    def __init__(self, folder, threads: int) -> None:
        self.blocks = small_cache(BLOCKS, PAGE_TOKENS, 8, 4, torch.bfloat16)
        self._folder = folder
        disk = DiskTier(folder, "weights", Paging(PAGE_TOKENS), self.blocks.page_bytes, 1 << 20)
        self.pages = {}
        for prefix, name in enumerate(("aa", "bb")):
            node = KvNode(name, "tenant", (name,), prefix * PAGES * PAGE_TOKENS, PAGES * PAGE_TOKENS)
            self.pages[name] = np.random.default_rng(prefix).integers(0, 256, (PAGES, self.blocks.page_bytes), np.uint8)
            with disk.writing(node, None) as writer:
                for index, page in enumerate(self.pages[name]):
                    writer.page(index)[:] = page
        memory = KvMemory("weights", "boot", PAGE_TOKENS, self.blocks.page_bytes, BLOCKS, 0, 9, 0.0, 1.0, "cpu")
        self.worker = WorkerSide(self.blocks, {Tier.HOST: NullTier(Tier.HOST), Tier.DISK: disk}, memory, threads)
        self.worker.take_results()

    def load(self, *pieces: Piece) -> None:
        """Load in the background, and wait until the load has ended."""
        self.worker.load(StepJobs(loads=[Load("request", pieces)]))
        until = time.monotonic() + PATIENCE_S
        while "request" not in self.worker.take_loaded():
            assert time.monotonic() < until, "the load has not ended"
            self.worker.pause(StepJobs(idle=True))

    def corrupt(self, name: str, page: int) -> None:
        """Flip a bit in a page of a node on disk."""
        (file,) = self._folder.rglob(f"{name}*.safetensors")
        with file.open("r+b") as opened:
            opened.seek(page * self.blocks.page_bytes - PAGES * self.blocks.page_bytes, 2)
            byte = opened.read(1)[0]
            opened.seek(-1, 1)
            opened.write(bytes([byte ^ 1]))

    def page(self, block: int) -> np.ndarray:
        page = np.empty(self.blocks.page_bytes, np.uint8)
        self.blocks.read(block, page, PAGE_TOKENS)
        return page


class KeptByComposing:
    """Stands in for what composing keeps, and notes on which thread it is to be forgotten."""

    def __init__(self) -> None:
        self.forgotten: list[tuple[int, threading.Thread]] = []

    def forget(self, purge: Purge) -> None:
        self.forgotten.append((purge.number, threading.current_thread()))

    def close(self) -> None:
        pass


@pytest.fixture
def loading(tmp_path, threads):
    loading = Loading(tmp_path, threads)
    yield loading
    loading.worker.close()


def test_all_pages_are_loaded_when_a_load_ends(loading):
    loading.load(piece_of("aa", Tier.DISK, 0, (3, 9, 4, 1, 7, 5)), piece_of("bb", Tier.DISK, 2, (8, 2, 6)))
    for name, first, blocks in (("aa", 0, (3, 9, 4, 1, 7, 5)), ("bb", 2, (8, 2, 6))):
        for index, block in enumerate(blocks, start=first):
            assert (loading.page(block) == loading.pages[name][index]).all()
    assert loading.worker.take_failed() == set()
    result = loading.worker.take_results().loads["request"]
    assert result.lost == ()
    assert result.seconds > 0


@pytest.mark.parametrize("corrupt", [0, 3, 5])
def test_a_corrupt_page_in_any_share_loses_its_node_only(loading, corrupt):
    loading.corrupt("bb", corrupt)
    loading.load(piece_of("aa", Tier.DISK, 0, (3, 9, 4, 1, 7, 5)), piece_of("bb", Tier.DISK, 0, (8, 2, 6, 10, 11, 12)))
    failed = loading.worker.take_failed()
    assert (8, 2, 6, 10, 11, 12)[corrupt] in failed
    assert failed <= {8, 2, 6, 10, 11, 12}
    for index, block in enumerate((3, 9, 4, 1, 7, 5)):
        assert (loading.page(block) == loading.pages["aa"][index]).all()
    for index, block in enumerate((8, 2, 6, 10, 11, 12)):
        assert block in failed or (loading.page(block) == loading.pages["bb"][index]).all()
    assert loading.worker.take_results().loads["request"].lost == (LostCopy("bb", Tier.DISK),)


def test_an_idle_step_does_not_wait_for_jobs_that_have_ended(loading, monkeypatch):
    """With asynchronous scheduling, one more idle step comes after the one that took the last results."""
    monkeypatch.setattr(worker_side, "_IDLE_WAIT_S", 2 * PATIENCE_S)
    loading.load(piece_of("aa", Tier.DISK, 0, tuple(range(PAGES))))
    began = time.monotonic()
    loading.worker.pause(StepJobs(idle=True))
    assert time.monotonic() - began < PATIENCE_S


def test_what_composing_keeps_is_forgotten_on_the_engines_thread(loading):
    """All ranks take their steps in one order, so they have the same facts when the next prompt is composed."""
    kept = KeptByComposing()
    loading.worker.compose_with(kept)
    loading.worker.transfer(StepJobs(purges=[Purge(number, None, ()) for number in range(2)]))
    assert kept.forgotten == [(number, threading.current_thread()) for number in range(2)]


def test_an_empty_load_ends(loading):
    loading.load()
    assert loading.worker.take_results().loads["request"].lost == ()
