"""Memory for the pages of donors, from when they are read until they are moved to their places."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from generator.tiers.base import Page


class StagedPages(ABC):
    """A ``PageTarget`` whose blocks are the rows of ``pages``, shape [any, page_bytes], on the engine's device or not.

    Its memory is free for others as soon as nobody refers to the object. Copies of one thread may still be under way
    when a call returns: ``PagedBlocks.finish`` waits for them.
    """

    @property
    @abstractmethod
    def pages(self) -> torch.Tensor:
        """The rows."""

    @abstractmethod
    def write(self, pages: Page, rows: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy rows of other ``pages`` into as many of these."""

    @abstractmethod
    def in_place(self, block: int) -> list[Page]:
        """A row's own memory. Empty if the CPU cannot access it."""

    @abstractmethod
    def take(self, blocks: Sequence[int], first: int) -> None:
        """Copy blocks of the engine into the rows from ``first`` on."""


class StagedRows(NamedTuple):
    """Some rows of ``staged`` pages, by their ``numbers``."""

    staged: StagedPages
    numbers: range


class HostStagedPages(StagedPages):
    """Staged pages in host memory. ``read_block`` copies one of the engine's blocks into a page of it.

    The first use takes the memory, by ``allocate``. It is not the engine's thread that waits for it, or that fails.
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
