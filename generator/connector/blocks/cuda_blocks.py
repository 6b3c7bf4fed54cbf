"""The blocks of an engine that runs on a GPU."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from generator.connector.blocks.device_copies import DeviceCopies
from generator.connector.blocks.device_staging import DeviceStaging
from generator.connector.blocks.paged_blocks import PagedBlocks, WriterOf
from generator.connector.blocks.pinned_path import PinnedPath
from generator.connector.blocks.staged_pages import HostStagedPages, StagedPages
from generator.tiers.base import Page


class CudaBlocks(PagedBlocks):
    """Blocks in a GPU's memory. All slabs of all blocks of a call are submitted as one batch of copies."""

    def __init__(
        self,
        kv_caches: Mapping[str, torch.Tensor],
        num_blocks: int,
        page_tokens: int,
        writer_of: WriterOf,
        copies: DeviceCopies,
    ) -> None:
        super().__init__(kv_caches, num_blocks, page_tokens, writer_of)
        self._copies = copies
        self._addresses = np.array([slab.data_ptr() for slab in self._slabs], np.int64)
        self._strides = np.array([slab.stride(0) for slab in self._slabs], np.int64)
        self._sizes = np.array([slab.shape[1] for slab in self._slabs], np.int64)
        self._offsets = np.array([span.start for span in self._spans], np.int64)
        self._path = PinnedPath(copies, self.page_bytes)
        self._staging = DeviceStaging(copies, self._path, self._gather, self.page_bytes)

    @property
    def device_name(self) -> str:
        """The GPU's model name."""
        return self._copies.device_name

    def read(self, block: int, page: Page, tokens: int) -> None:
        """Copy a block into ``page``, with zeros behind its first ``tokens`` tokens."""
        if not self._copies.is_pinned(page):
            pinned = self._path.page()
            self._save(block, pinned)
            self.finish()
            page[:] = pinned
        else:
            self._save(block, page)
            if tokens < self.page_tokens:
                # The zeros are written by the CPU, so the bytes must have arrived.
                self.finish()
        self._clear_behind(tokens, page)

    def write(self, pages: Page, rows: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy rows of ``pages`` into as many blocks."""
        self._path.copy(pages, rows, blocks, self._load)

    def stage(self, count: int) -> StagedPages:
        """Memory for ``count`` pages: the GPU's own, or pinned host memory if there is no room."""
        staged = self._staging.stage(count)
        if staged is not None:
            return staged
        return HostStagedPages(partial(self._pinned_pages, count), partial(self.read, tokens=self.page_tokens))

    def in_place(self, block: int) -> list[Page]:  # noqa: ARG002
        """Nothing: the CPU cannot access a GPU's memory."""
        return []

    def pin(self, memory: Page) -> Callable[[], None]:
        """Pin host memory, and return the function that unpins it."""
        return self._copies.pin(memory)

    def enter_thread(self) -> None:
        """Let a thread make its copies beside the engine's work."""
        self._copies.enter_thread()

    def fence(self) -> Callable[[], None]:
        """A function that holds back the calling thread's later copies until the engine's work so far is done."""
        return self._copies.fence()

    def finish(self) -> None:
        """Wait until all copies of the calling thread are done."""
        self._copies.mark()()

    def _indices(self, numbers: Sequence[int]) -> torch.Tensor:
        return self._copies.indices(numbers)

    def _gather(self, blocks: Sequence[int], pages: torch.Tensor) -> None:
        """Copy blocks into as many ``pages`` on the device, shape [blocks, page_bytes]."""
        with self._copies.in_order():
            numbers = self._indices(blocks)
            for slab, span in zip(self._slabs, self._spans, strict=True):
                pages[:, span] = slab.index_select(0, numbers)

    def _pinned_pages(self, count: int) -> Page:
        return self._copies.pinned(count * self.page_bytes).reshape(count, self.page_bytes)

    def _save(self, block: int, page: Page) -> None:
        """Start to copy a block into a pinned page."""
        self._copies.submit(self._addresses + block * self._strides, page.ctypes.data + self._offsets, self._sizes)

    def _load(self, pages: Page, rows: Sequence[int], blocks: Sequence[int]) -> None:
        """Start to copy rows of pinned pages into as many blocks."""
        sources = pages.ctypes.data + np.asarray(rows, np.int64)[:, np.newaxis] * pages.strides[0] + self._offsets
        targets = self._addresses + np.asarray(blocks, np.int64)[:, np.newaxis] * self._strides
        self._copies.submit(sources.reshape(-1), targets.reshape(-1), np.tile(self._sizes, len(rows)))
