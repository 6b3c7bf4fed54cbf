"""Moves between host memory and disk, while another instance takes the pages that are being copied."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from tier_checks import check_tier

pytest.importorskip("vllm")

import torch
from small_cache import small_cache

from generator.connector.step_jobs import Purge, Transfer
from generator.connector.worker.tier_jobs import TierJobs
from generator.tiers.arena import HostArena
from generator.tiers.base import KvBroken, KvMissing, PageWriter, TierUnavailable
from generator.tiers.disk import DiskTier
from protocol.kv import KvNode, Pages
from protocol.tiers import Tier

BLOCKS, PAGE_TOKENS, PAGES = 8, 4, 4
NODE = KvNode("aa", "tenant", ("aa",), 0, PAGES * PAGE_TOKENS)
OTHER = KvNode("bb", "tenant", ("bb",), 0, PAGES * PAGE_TOKENS)
BEFORE, AFTER = Pages(tuple(range(PAGES)), 1), Pages(tuple(range(PAGES)), 2)


class InterruptedDisk(DiskTier):
    """A disk tier that calls ``interrupt`` before a copy's page number ``at`` is filled."""

    at = 0
    interrupt: Callable[[], None]

    @contextmanager
    def writing(self, node: KvNode, pages: Pages | None) -> Iterator[PageWriter]:
        with super().writing(node, pages) as writer:
            yield InterruptedWriter(writer, self)


class InterruptedWriter:
    def __init__(self, writer: PageWriter, disk: InterruptedDisk) -> None:
        self._writer = writer
        self._disk = disk

    def page(self, index: int) -> np.ndarray:
        if index == self._disk.at:
            self._disk.interrupt()
        return self._writer.page(index)


@pytest.mark.parametrize("at", range(PAGES))
def test_a_copy_whose_pages_are_taken_meanwhile_is_not_published(tmp_path, at):
    blocks = small_cache(BLOCKS, PAGE_TOKENS, 8, 4, torch.bfloat16)
    sizes = (blocks.paging, blocks.page_bytes)
    own, others = (HostArena(tmp_path / "kv.arena", "weights", *sizes, PAGES) for _ in range(2))
    disk = InterruptedDisk(tmp_path / "kv", "weights", *sizes, 1 << 20)

    def fill(arena: HostArena, node: KvNode, pages: Pages, byte: int) -> None:
        with arena.writing(node, pages) as writer:
            for index in range(PAGES):
                writer.page(index)[:] = byte

    fill(own, NODE, BEFORE, 1)
    disk.at, disk.interrupt = at, lambda: fill(others, OTHER, AFTER, 2)
    jobs = TierJobs(blocks, {Tier.HOST: own, Tier.DISK: disk})
    with pytest.raises(KvBroken):
        jobs.transfer(Transfer(1, NODE.key, Tier.HOST, Tier.DISK, pages=BEFORE))
    assert not disk.has(NODE.key, None)
    assert disk.nodes() == []
    with pytest.raises(KvMissing), disk.reading(NODE.key, None):
        pass
    check_tier(disk)


class SilentStore(DiskTier):
    """A tier on a network that does not answer."""

    def nodes(self):
        raise TierUnavailable("no answer")


def test_a_purge_reports_a_tier_that_does_not_answer_and_empties_the_others(tmp_path):
    blocks = small_cache(BLOCKS, PAGE_TOKENS, 8, 4, torch.bfloat16)
    sizes = (blocks.paging, blocks.page_bytes)
    host = HostArena(tmp_path / "kv.arena", "weights", *sizes, PAGES)
    store = SilentStore(tmp_path / "kv", "weights", *sizes, 1 << 20)
    for tier, pages in ((host, BEFORE), (store, None)):
        with tier.writing(NODE, pages) as writer:
            for index in range(PAGES):
                writer.page(index)[:] = 1
    jobs = TierJobs(blocks, {Tier.HOST: host, Tier.DISK: store})
    assert jobs.purge(Purge(1, None, (Tier.HOST,))) == 0
    assert not host.has(NODE.key, BEFORE)
    with pytest.raises(TierUnavailable):
        jobs.purge(Purge(2, None, (Tier.DISK, Tier.HOST)))
    assert store.has(NODE.key, None)
    # Others must not take its silence for an empty tier.
    assert set(jobs.held()) == {Tier.HOST}
    host.close()
