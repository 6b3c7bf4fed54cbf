"""Blocks of plain memory that tiers load pages into, instead of an engine's."""

from collections.abc import Sequence

import numpy as np

from generator.tiers.base import Page


class MemoryBlocks:
    """A ``PageTarget`` of ``count`` blocks, each of slabs of ``slab_bytes``. ``reachable``: the CPU can access them."""

    def __init__(self, count: int, slab_bytes: Sequence[int], reachable: bool = True) -> None:
        self._slabs = [np.full((count, size), 0xAA, np.uint8) for size in slab_bytes]
        self._reachable = reachable
        self.written: list[int] = []
        """The number of pages of each write."""

    def write(self, pages: Page, rows: Sequence[int], blocks: Sequence[int]) -> None:
        assert len(rows) == len(blocks)
        self.written.append(len(rows))
        for row, block in zip(rows, blocks, strict=True):
            at = 0
            for slab in self._slabs:
                slab[block] = pages[row, at : at + slab.shape[1]]
                at += slab.shape[1]

    def in_place(self, block: int) -> list[Page]:
        return [slab[block] for slab in self._slabs] if self._reachable else []

    def page(self, block: int) -> Page:
        return np.concatenate([slab[block] for slab in self._slabs])
