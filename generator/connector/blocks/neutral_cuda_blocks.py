"""The blocks of an engine that runs on a GPU, with pages that engines of other layouts can read."""

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from generator.connector.blocks.cuda_blocks import CudaBlocks
from generator.connector.blocks.device_copies import DeviceCopies
from generator.connector.blocks.neutral_order import NeutralOrder
from generator.connector.blocks.paged_blocks import LayerPlaces, WriterOf
from generator.tiers.base import Page

_BUFFER_BYTES = 4 << 20
"""Of the pages that a thread turns at once."""


class NeutralCudaBlocks(CudaBlocks):
    """``CudaBlocks`` whose pages have the neutral order. The GPU turns them, in a buffer for each thread."""

    def __init__(
        self,
        kv_caches: Mapping[str, torch.Tensor],
        num_blocks: int,
        page_tokens: int,
        writer_of: WriterOf,
        copies: DeviceCopies,
    ) -> None:
        super().__init__(kv_caches, num_blocks, page_tokens, writer_of, copies)
        own = super().places()
        self._order = NeutralOrder(own, self.dtype.itemsize)
        elements = np.concatenate([layer.in_page for layer in own]).astype(np.int64)
        # The element of the engine's own page that each element of a neutral one is.
        self._own_of = torch.from_numpy(elements).to(self._slabs[0].device)
        self._token_of = self._token_of[elements]
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
