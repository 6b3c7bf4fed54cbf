"""Blocks of plain memory that tiers load pages into, in place of an engine's."""

from collections.abc import Sequence

import numpy as np

from generator.tiers.base import Page


class MemoryBlocks:
    """A ``PageTarget`` of ``count`` blocks, each of slabs of ``slab_bytes``; out of a CPU's reach if not ``reachable``.

    ``page_tokens`` and ``finish`` are an engine's blocks', for who measures them.
    """

    def __init__(self, count: int, slab_bytes: Sequence[int], reachable: bool = True, page_tokens: int = 16) -> None:
        self.page_tokens = page_tokens
        self.page_bytes = sum(slab_bytes)
        self._slabs = [np.full((count, size), 0xAA, np.uint8) for size in slab_bytes]
        self._reachable = reachable

    def write(self, pages: Page, rows: Sequence[int], blocks: Sequence[int]) -> None:
        assert len(rows) == len(blocks)
        for row, block in zip(rows, blocks, strict=True):
            at = 0
            for slab in self._slabs:
                slab[block] = pages[row, at : at + slab.shape[1]]
                at += slab.shape[1]

    def in_place(self, block: int) -> list[Page]:
        return [slab[block] for slab in self._slabs] if self._reachable else []

    def finish(self) -> None:
        pass

    def page(self, block: int) -> Page:
        return np.concatenate([slab[block] for slab in self._slabs])
