"""Memory for the pages of donors, from when they are read until they are moved to their places."""

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from generator.connector.blocks.cuda_copies import CudaCopies
from generator.connector.blocks.pinned_path import PinnedPath
from generator.tiers.base import Page, PageTarget

_SHARE_OF_FREE = 0.25
"""Of the device's memory that is free once the engine has its KV cache. The engine's steps need some of it, too."""

Gather: TypeAlias = Callable[[Sequence[int], torch.Tensor], None]
"""Copies blocks of the engine into as many pages on the device, in order with the calling thread's copies."""


class StagedPages(PageTarget, ABC):
    """A ``PageTarget`` whose blocks are the rows of ``pages``, shape [any, page_bytes], on the engine's device or not.

    Its memory is free for others as soon as nobody refers to the object. Copies of one thread may still be under way
    when a call returns: ``PagedBlocks.finish`` waits for them.
    """

    @property
    @abstractmethod
    def pages(self) -> torch.Tensor:
        """The rows."""

    @abstractmethod
    def take(self, blocks: Sequence[int], first: int) -> None:
        """Copy blocks of the engine into the rows from ``first`` on."""


class StagedRows(NamedTuple):
    """Some rows of ``staged`` pages, by their ``numbers``."""

    staged: StagedPages
    numbers: range


class HostStagedPages(StagedPages):
    """Staged pages in host memory. ``read_block`` copies one of the engine's blocks into a page of it.

    The first use takes the memory, by ``allocate``. The engine's thread neither waits for it nor fails.
    """

    def __init__(self, allocate: Callable[[], Page], read_block: Callable[[int, Page], None]) -> None:
        self._allocate = allocate
        self._read_block = read_block
        # Several threads may load at once.
        self._lock = threading.Lock()
        self._taken: Page | None = None

    @property
    def pages(self) -> torch.Tensor:
        """The rows."""
        return torch.from_numpy(self._rows)

    @property
    def _rows(self) -> Page:
        with self._lock:
            if self._taken is None:
                self._taken = self._allocate()
            return self._taken

    def write(self, pages: Page, rows: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy rows of other ``pages`` into as many of these."""
        self._rows[list(blocks)] = pages[list(rows)]

    def in_place(self, block: int) -> list[Page]:
        """A row's own memory."""
        return [self._rows[block]]

    def take(self, blocks: Sequence[int], first: int) -> None:
        """Copy blocks of the engine into the rows from ``first`` on."""
        rows = self._rows
        for row, block in enumerate(blocks, start=first):
            self._read_block(block, rows[row])


class DeviceStaging:
    """Stages pages of ``page_bytes`` bytes on a device, in a limited share of its memory.

    ``gather`` copies the engine's blocks there.
    """

    def __init__(self, copies: CudaCopies, path: PinnedPath, gather: Gather, page_bytes: int) -> None:
        self._copies = copies
        self._path = path
        self._gather = gather
        self._page_bytes = page_bytes
        self._room = int(_SHARE_OF_FREE * copies.free_bytes())
        # The last reference to staged pages may end on any thread.
        self._lock = threading.Lock()

    def stage(self, count: int) -> "DeviceStagedPages | None":
        """Memory for ``count`` pages, or None if there is no room."""
        size = count * self._page_bytes
        with self._lock:
            if size > self._room:
                return None
            self._room -= size
        memory = self._copies.new_pages(count, self._page_bytes)
        if memory is None:
            self._give_back(size)
            return None
        staged = DeviceStagedPages(memory, self._copies, self._path, self._gather)
        weakref.finalize(staged, self._give_back, size)
        return staged

    def _give_back(self, size: int) -> None:
        with self._lock:
            self._room += size


class DeviceStagedPages(StagedPages):
    """Staged pages on a device."""

    def __init__(self, pages: torch.Tensor, copies: CudaCopies, path: PinnedPath, gather: Gather) -> None:
        self._pages = pages
        self._copies = copies
        self._path = path
        self._gather = gather

    @property
    def pages(self) -> torch.Tensor:
        """The rows."""
        return self._pages

    def write(self, pages: Page, rows: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy rows of other ``pages``, in host memory, into as many of these."""
        self._path.copy(pages, rows, blocks, self._start)

    def in_place(self, block: int) -> list[Page]:  # noqa: ARG002
        """Nothing: the CPU cannot access the device's memory."""
        return []

    def take(self, blocks: Sequence[int], first: int) -> None:
        """Copy blocks of the engine into the rows from ``first`` on, on the device."""
        self._gather(blocks, self._pages[first : first + len(blocks)])

    def _start(self, pages: Page, rows: Sequence[int], targets: Sequence[int]) -> None:
        size = self._pages.shape[1]
        self._copies.submit(
            pages.ctypes.data + np.asarray(rows, np.int64) * pages.strides[0],
            self._pages.data_ptr() + np.asarray(targets, np.int64) * size,
            np.full(len(rows), size, np.int64),
        )
