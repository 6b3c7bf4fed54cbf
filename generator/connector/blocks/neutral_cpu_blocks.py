"""The blocks of an engine that runs on a CPU, with pages that engines of other layouts can read."""

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from generator.connector.blocks.cpu_blocks import CpuBlocks
from generator.connector.blocks.neutral_order import NeutralOrder
from generator.connector.blocks.paged_blocks import LayerPlaces, WriterOf
from generator.tiers.base import Page

_BUFFER_BYTES = 2 << 20
"""Of the pages that a thread turns at once: they stay in its core's cache until they are copied."""


class NeutralCpuBlocks(CpuBlocks):
    """``CpuBlocks`` whose pages have the neutral order. Each thread turns them in its own buffer."""

    def __init__(
        self, kv_caches: Mapping[str, torch.Tensor], num_blocks: int, page_tokens: int, writer_of: WriterOf
    ) -> None:
        super().__init__(kv_caches, num_blocks, page_tokens, writer_of)
        self._order = NeutralOrder(super().places(), self.dtype.itemsize)
        self._threads = threading.local()

    def places(self) -> list[LayerPlaces]:
        """Where a page has each layer's keys and values."""
        return self._order.places

    def read(self, block: int, page: Page, tokens: int) -> None:
        """Copy a block into ``page``, with zeros behind its first ``tokens`` tokens."""
        own = self._buffer[0]
        super().read(block, own, tokens)
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
