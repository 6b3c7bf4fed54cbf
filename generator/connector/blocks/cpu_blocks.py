"""The blocks of an engine that runs on a CPU, also with pages that engines of other layouts can read."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from generator.connector.blocks.neutral_order import NeutralOrder
from generator.connector.blocks.paged_blocks import EngineCache, LayerPlaces, PagedBlocks
from generator.connector.blocks.staged_pages import HostStagedPages, StagedPages
from generator.tiers.base import Page

if TYPE_CHECKING:
    from generator.connector.step_jobs import BlockCopy

_BUFFER_BYTES = 2 << 20
"""Of the pages that a thread turns at once: they stay in its core's cache until they are copied."""


class CpuBlocks(PagedBlocks):
    """Blocks in the CPU's own memory. Each call returns when its copies are made, and so does the engine.

    Threads other than the engine's copy with numpy. torch would start OpenMP threads for each, and with more of
    those than cores, GNU's OpenMP lets all sleep between parallel regions: each later step of the engine would take
    half as long again.
    """

    def __init__(self, cache: EngineCache) -> None:
        super().__init__(cache)
        self._flat = [slab.numpy() for slab in self._slabs]
        self._engines_thread = threading.get_ident()

    @property
    def device_name(self) -> str:
        """The device's type and number of threads."""
        return f"cpu-{torch.get_num_threads()}"

    def read(self, block: int, page: Page, tokens: int, group: int = 0) -> None:
        """Copy a block of a group into ``page``, with zeros after its first ``tokens`` tokens."""
        for flat, span in zip(self._flat, self._spans, strict=True):
            page[span] = flat[block]
        self._clear_behind(tokens, page, group)

    def write(self, pages: Page, rows: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy rows of ``pages`` into as many blocks, slab by slab."""
        runs = _runs(rows, blocks)
        for flat, span in zip(self._flat, self._spans, strict=True):
            for run, targets in runs:
                flat[targets] = pages[run, span]

    def stage(self, count: int) -> StagedPages:
        """Memory for ``count`` pages."""
        shape = (count, self.page_bytes)
        return HostStagedPages(lambda: np.empty(shape, np.uint8), partial(self.read, tokens=self.page_tokens))

    def copy(self, copies: "Sequence[BlockCopy]") -> None:
        """Copy blocks onto other ones: in the engine's thread on all cores, in any other one on a single core."""
        if threading.get_ident() == self._engines_thread:
            super().copy(copies)
            return
        sources, targets = [copy.source for copy in copies], [copy.target for copy in copies]
        for flat in self._flat:
            flat[targets] = flat[sources]

    def in_place(self, block: int) -> list[Page]:
        """A block's own memory, one part a slab."""
        return [flat[block] for flat in self._flat]

    def pin(self, memory: Page) -> Callable[[], None]:  # noqa: ARG002 - a CPU copies any memory directly
        """Do nothing."""
        return lambda: None

    def enter_thread(self) -> None:
        """Do nothing."""

    def fence(self) -> Callable[[], None]:
        """A function that returns at once."""
        return lambda: None

    def join(self) -> Callable[[], bool]:
        """A function that says that all copies are done."""
        return lambda: True

    def finish(self) -> None:
        """Do nothing."""

    def _indices(self, numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(numbers)


def _runs(rows: Sequence[int], blocks: Sequence[int]) -> list[tuple[slice, slice | list[int]]]:
    """Ranges of consecutive rows, each with the blocks to copy them into."""
    if not rows:
        return []
    cuts = [at for at in range(1, len(rows)) if rows[at] != rows[at - 1] + 1]
    return [
        (slice(rows[begin], rows[end - 1] + 1), _together(blocks[begin:end]))
        for begin, end in pairwise([0, *cuts, len(rows)])
    ]


def _together(blocks: Sequence[int]) -> slice | list[int]:
    """Blocks as a slice if they follow each other: numpy copies that a quarter faster."""
    first, last = blocks[0], blocks[-1]
    follow = last - first == len(blocks) - 1 and list(blocks) == list(range(first, last + 1))
    return slice(first, last + 1) if follow else list(blocks)


class NeutralCpuBlocks(CpuBlocks):
    """``CpuBlocks`` whose pages have the neutral order. Each thread turns them in its own buffer."""

    def __init__(self, cache: EngineCache) -> None:
        super().__init__(cache)
        self._order = NeutralOrder(super().places(), self.dtype.itemsize)
        self._threads = threading.local()

    def places(self) -> list[LayerPlaces]:
        """Where a page has each layer's keys and values."""
        return self._order.places

    def read(self, block: int, page: Page, tokens: int, group: int = 0) -> None:
        """Copy a block of a group into ``page``, with zeros after its first ``tokens`` tokens."""
        own = self._buffer[0]
        super().read(block, own, tokens, group)
        self._order.to_neutral(own, page)

    def write(self, pages: Page, rows: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy rows of ``pages`` into as many blocks."""
        buffer = self._buffer
        for begin in range(0, len(rows), len(buffer)):
            part = rows[begin : begin + len(buffer)]
            for own, row in zip(buffer, part, strict=False):
                self._order.to_own(pages[row], own)
            super().write(buffer, range(len(part)), blocks[begin : begin + len(part)])

    def in_place(self, block: int) -> list[Page]:  # noqa: ARG002
        """Nothing: a block's own memory has another order than pages."""
        return []

    @property
    def _buffer(self) -> Page:
        """The calling thread's buffer, shape [any, page_bytes]."""
        if not hasattr(self._threads, "buffer"):
            rows = max(1, _BUFFER_BYTES // self.page_bytes)
            self._threads.buffer = np.empty((rows, self.page_bytes), np.uint8)
        buffer: Page = self._threads.buffer
        return buffer
