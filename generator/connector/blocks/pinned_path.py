"""The way of pages from host memory to a device."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

from generator.connector.blocks.cuda_copies import CudaCopies
from generator.tiers.base import Page

_BUFFER_BYTES = 8 << 20

Start: TypeAlias = Callable[[Page, Sequence[int], Sequence[int]], None]
"""Starts to copy rows of pinned pages to as many targets on the device, by number."""


class PinnedPath:
    """Copies pinned memory directly, and any other through pinned buffers, two for each thread."""

    def __init__(self, copies: CudaCopies, page_bytes: int) -> None:
        self._copies = copies
        self._page_bytes = page_bytes
        self._threads = threading.local()

    def copy(self, pages: Page, rows: Sequence[int], targets: Sequence[int], start: Start) -> None:
        """Copy rows of ``pages``. Pinned memory must stay until the copies are done; any other is free on return."""
        if self._copies.is_pinned(pages):
            start(pages, rows, targets)
            return
        buffers = self._buffers
        for begin in range(0, len(rows), buffers.rows):
            part = slice(begin, begin + buffers.rows)
            buffer = buffers.take()
            for place, row in enumerate(rows[part]):
                buffer[place] = pages[row]
            start(buffer, range(len(rows[part])), targets[part])
            buffers.given()

    def page(self) -> Page:
        """A pinned page of the calling thread's, until its next call."""
        page: Page = self._buffers.take()[0]
        return page

    @property
    def _buffers(self) -> "_Buffers":
        """The calling thread's buffers."""
        if not hasattr(self._threads, "buffers"):
            self._threads.buffers = _Buffers(self._copies, self._page_bytes)
        buffers: _Buffers = self._threads.buffers
        return buffers


class _Buffers:
    """Two pinned buffers of ``rows`` pages that take turns: one is filled while the other one is copied."""

    def __init__(self, copies: CudaCopies, page_bytes: int) -> None:
        self.rows = max(1, _BUFFER_BYTES // page_bytes)
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
