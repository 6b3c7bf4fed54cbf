"""The blocks of an engine that runs on a GPU."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from generator.connector.worker.blocks import PagedBlocks, WriterOf
from generator.tiers.base import Page

_STAGING_BYTES = 8 << 20

Numbers: TypeAlias = NDArray[np.int64]


class DeviceCopies(Protocol):
    """A device's copies, by address. Those of one thread are made in order, beside the engine's own work."""

    @property
    def device_name(self) -> str:
        """The device's model name."""

    def submit(self, sources: Numbers, targets: Numbers, sizes: Numbers) -> None:
        """Start copies between host memory and the device: ``sizes`` bytes each.

        The host memory must be pinned, and must stay until the copies are done.
        """

    def mark(self) -> Callable[[], None]:
        """A function that waits until the copies that the calling thread has started so far are done."""

    def fence(self) -> Callable[[], None]:
        """A function that holds back the calling thread's later copies until the engine's work so far is done."""

    def enter_thread(self) -> None:
        """Let what else the calling thread does on the device run in order with its copies."""

    def is_pinned(self, memory: Page) -> bool:
        """Whether host memory is pinned."""

    def pinned(self, size: int) -> Page:
        """New pinned memory of ``size`` bytes."""

    def pin(self, memory: Page) -> Callable[[], None]:
        """Pin host memory. Returns the function that unpins it. If that fails, a warning is logged."""


class CudaBlocks(PagedBlocks):
    """Blocks in a GPU's memory. All slabs of all blocks of a call are submitted as one batch of copies.

    Memory that is not pinned is copied through pinned staging buffers, two for each thread.
    """

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
        self._threads = threading.local()

    @property
    def device_name(self) -> str:
        """The GPU's model name."""
        return self._copies.device_name

    def read(self, block: int, page: Page, tokens: int) -> None:
        """Copy a block into ``page``, with zeros behind its first ``tokens`` tokens."""
        if not self._copies.is_pinned(page):
            buffer = self._staging.take()
            self._save(block, buffer[0])
            self.finish()
            page[:] = buffer[0]
        else:
            self._save(block, page)
            if tokens < self.page_tokens:
                # The zeros are written by the CPU, so the bytes must have arrived.
                self.finish()
        self._clear_behind(tokens, page)

    def write(self, pages: Page, rows: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy rows of ``pages`` into as many blocks."""
        if self._copies.is_pinned(pages):
            self._load(pages, rows, blocks)
            return
        staging = self._staging
        for begin in range(0, len(rows), staging.rows):
            part = slice(begin, begin + staging.rows)
            buffer = staging.take()
            for place, row in enumerate(rows[part]):
                buffer[place] = pages[row]
            self._load(buffer, range(len(rows[part])), blocks[part])
            staging.given()

    def host_pages(self, count: int) -> Page:
        """New pinned memory for pages."""
        return self._copies.pinned(count * self.page_bytes).reshape(count, self.page_bytes)

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

    def _save(self, block: int, page: Page) -> None:
        self._copies.submit(self._addresses + block * self._strides, page.ctypes.data + self._offsets, self._sizes)

    def _load(self, pages: Page, rows: Sequence[int], blocks: Sequence[int]) -> None:
        sources = pages.ctypes.data + np.asarray(rows, np.int64)[:, np.newaxis] * pages.strides[0] + self._offsets
        targets = self._addresses + np.asarray(blocks, np.int64)[:, np.newaxis] * self._strides
        self._copies.submit(sources.reshape(-1), targets.reshape(-1), np.tile(self._sizes, len(rows)))

    @property
    def _staging(self) -> "_Staging":
        """The calling thread's staging buffers."""
        if not hasattr(self._threads, "staging"):
            self._threads.staging = _Staging(self._copies, self.page_bytes)
        staging: _Staging = self._threads.staging
        return staging


class _Staging:
    """Two pinned buffers of ``rows`` pages that take turns: one is filled while the other one is copied."""

    def __init__(self, copies: DeviceCopies, page_bytes: int) -> None:
        self.rows = max(1, _STAGING_BYTES // page_bytes)
        self._copies = copies
        self._buffers = [copies.pinned(self.rows * page_bytes).reshape(self.rows, page_bytes) for _ in range(2)]
        self._copied = [copies.mark(), copies.mark()]
        self._turn = 0

    def take(self) -> Page:
        """The buffer whose turn it is, once its last copies are done."""
        self._turn = 1 - self._turn
        self._copied[self._turn]()
        return self._buffers[self._turn]

    def given(self) -> None:
        """Note that the copies of the buffer taken last are submitted."""
        self._copied[self._turn] = self._copies.mark()
