"""Nodes of a machine, its tiers, and a place to load them to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from generator.peers.wire import PageFormat
from generator.tiers.arena import HostArena
from generator.tiers.base import KvTier, Page, PageReader
from generator.tiers.disk import DiskTier
from protocol.kv import KvNode, Pages, Paging

KEY = "the key of these tests"
FINGERPRINT = "weights-of-these-tests"
PAGE_TOKENS = 16
PAGE_BYTES = 5000
"""Not a multiple of any alignment of the tiers."""
ARENA_PAGES = 64
FORMAT = PageFormat(FINGERPRINT, PAGE_BYTES, 0)


def open_arena(folder: Path, page_bytes: int = PAGE_BYTES, page_count: int = ARENA_PAGES) -> HostArena:
    return HostArena(folder / "kv.arena", FINGERPRINT, Paging(PAGE_TOKENS), page_bytes, page_count)


def open_disk(folder: Path) -> DiskTier:
    return DiskTier(folder / "disk", FINGERPRINT, Paging(PAGE_TOKENS), PAGE_BYTES, 10**7)


def make_node(number: int, pages: int = 3) -> KvNode:
    return KvNode(f"{number:064x}", "tenant", ("system", f"doc{number}"), 0, pages * PAGE_TOKENS)


def content_of(node: KvNode, page_bytes: int = PAGE_BYTES) -> Page:
    shape = (node.tokens // PAGE_TOKENS, page_bytes)
    return np.random.default_rng(int(node.key, 16)).integers(0, 256, shape, dtype=np.uint8)


def write(tier: KvTier, node: KvNode, pages: Pages | None = None, page_bytes: int = PAGE_BYTES) -> None:
    with tier.writing(node, pages) as writer:
        for index, page in enumerate(content_of(node, page_bytes)):
            writer.page(index)[:] = page


class InterruptedArena(HostArena):
    """An arena that calls ``interrupt`` with the index before it returns a page to a reader."""

    interrupt: Callable[[int], None] = staticmethod(lambda _: None)

    @contextmanager
    def reading(self, key: str, pages: Pages | None) -> Iterator[PageReader]:
        with super().reading(key, pages) as reader:
            yield _InterruptedReader(reader, self.interrupt)


class _InterruptedReader:
    def __init__(self, reader: PageReader, interrupt: Callable[[int], None]) -> None:
        self._reader = reader
        self._interrupt = interrupt
        self.node = reader.node
        self.load = reader.load
        self.uncache = reader.uncache
        self.verify = reader.verify

    def page(self, index: int) -> Page:
        page = self._reader.page(index)
        self._interrupt(index)
        return page
