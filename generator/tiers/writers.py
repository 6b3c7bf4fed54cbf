"""Base classes of page writers, which check that every page is written, in order."""

from abc import ABC, abstractmethod

import numpy as np

from generator.tiers.base import Page


class OrderedWriter(ABC):
    """A ``PageWriter`` of ``count`` pages that enforces their order."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._next = 0

    def page(self, index: int) -> Page:
        """The buffer for page ``index``. Raises ValueError if another page is next."""
        if index != self._next or index >= self._count:
            raise ValueError(f"page {index} is out of order: page {self._next} of {self._count} is next")
        buffer = self._buffer(index)
        self._next += 1
        return buffer

    def finish(self) -> None:
        """Finish the last page. Raises ValueError unless every page was filled."""
        if self._next != self._count:
            raise ValueError(f"{self._next} of {self._count} pages were filled")

    @abstractmethod
    def _buffer(self, index: int) -> Page:
        """The buffer for page ``index``, which is the next one."""


class DiscardingWriter(OrderedWriter):
    """Discards what is written, for a copy that is already published."""

    def __init__(self, count: int, page_bytes: int) -> None:
        super().__init__(count)
        self._scratch = np.empty(page_bytes, np.uint8)

    def _buffer(self, index: int) -> Page:  # noqa: ARG002 - all pages share one buffer
        return self._scratch
