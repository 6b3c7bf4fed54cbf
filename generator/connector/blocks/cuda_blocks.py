"""The blocks of an engine that runs on a GPU, also with pages that engines of other layouts can read."""

import threading
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from generator.connector.blocks.cuda_copies import CudaCopies
from generator.connector.blocks.neutral_order import NeutralOrder
from generator.connector.blocks.paged_blocks import EngineCache, LayerPlaces, PagedBlocks
from generator.connector.blocks.pinned_path import PinnedPath
from generator.connector.blocks.staged_pages import DeviceStaging, HostStagedPages, StagedPages
from generator.tiers.base import Page

_BUFFER_BYTES = 4 << 20
"""Of the pages that a thread turns at once."""


class CudaBlocks(PagedBlocks):
    """Blocks in a GPU's memory. All slabs of all blocks of a call are submitted as one batch of copies."""

    def __init__(self, cache: EngineCache, copies: CudaCopies) -> None:
        super().__init__(cache)
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

    def read(self, block: int, page: Page, tokens: int, group: int = 0) -> None:
        """Copy a block of a group into ``page``, with zeros after its first ``tokens`` tokens."""
        if not self._copies.is_pinned(page):
            pinned = self._path.page()
            self._save(block, pinned)
            self.finish()
            page[:] = pinned
        else:
            self._save(block, page)
            if self._clears(tokens, group):
                # The zeros are written by the CPU, so the bytes must have arrived.
                self.finish()
        self._clear_behind(tokens, page, group)

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

    def join(self) -> Callable[[], bool]:
        """Hold back the engine's later work until the copies of its thread are done."""
        return self._copies.join()

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


class NeutralCudaBlocks(CudaBlocks):
    """``CudaBlocks`` whose pages have the neutral order. The GPU turns them, in a buffer for each thread."""

    def __init__(self, cache: EngineCache, copies: CudaCopies) -> None:
        super().__init__(cache, copies)
        own = super().places()
        self._order = NeutralOrder(own, self.dtype.itemsize)
        elements = np.concatenate([layer.in_page for layer in own]).astype(np.int64)
        # The element of the engine's own page that each element of a neutral one is.
        self._own_of = torch.from_numpy(elements).to(self._slabs[0].device)
        (group,) = self._groups
        self._groups = [group._replace(token_of=group.token_of[elements])]
        self._threads = threading.local()

    def places(self) -> list[LayerPlaces]:
        """Where a page has each layer's keys and values."""
        return self._order.places

    def _gather(self, blocks: Sequence[int], pages: torch.Tensor) -> None:
        with self._copies.in_order():
            own = torch.empty_like(pages)
            super()._gather(blocks, own)
            pages.view(self.dtype)[:] = own.view(self.dtype).index_select(1, self._own_of)

    def _scatter(self, pages: torch.Tensor, blocks: Sequence[int]) -> None:
        """Copy ``pages`` on the device into as many blocks."""
        with self._copies.in_order():
            numbers = self._indices(blocks)
            own = torch.empty_like(pages)
            own.view(self.dtype).index_copy_(1, self._own_of, pages.view(self.dtype))
            for lanes, span in zip(self._lanes, self._spans, strict=True):
                lanes.index_copy_(0, numbers, own[:, span].view(lanes.dtype))

    def _save(self, block: int, page: Page) -> None:
        buffer = self._buffer[:1]
        self._gather([block], buffer)
        self._copies.submit(
            *(np.array([number], np.int64) for number in (buffer.data_ptr(), page.ctypes.data, page.nbytes))
        )

    def _load(self, pages: Page, rows: Sequence[int], blocks: Sequence[int]) -> None:
        buffer = self._buffer
        targets = buffer.data_ptr() + np.arange(len(buffer)) * self.page_bytes
        for begin in range(0, len(rows), len(buffer)):
            part = np.asarray(rows[begin : begin + len(buffer)], np.int64)
            sources = pages.ctypes.data + part * pages.strides[0]
            self._copies.submit(sources, targets[: len(part)], np.full(len(part), self.page_bytes, np.int64))
            self._scatter(buffer[: len(part)], blocks[begin : begin + len(part)])

    @property
    def _buffer(self) -> torch.Tensor:
        """The calling thread's pages on the device. Its copies are made in order, so it fills them again at once."""
        if not hasattr(self._threads, "buffer"):
            size = (max(1, _BUFFER_BYTES // self.page_bytes), self.page_bytes)
            with self._copies.in_order():
                self._threads.buffer = torch.empty(size, dtype=torch.uint8, device=self._own_of.device)
        buffer: torch.Tensor = self._threads.buffer
        return buffer
