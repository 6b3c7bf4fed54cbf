"""What writers of nodes have in common: pages come in their order, and none is left out."""

from abc import ABC, abstractmethod

import numpy as np

from generator.tiers.base import Page


class OrderedWriter(ABC):
    """A ``PageWriter`` of ``count`` pages that sees to their order."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._next = 0

    def page(self, index: int) -> Page:
        """The buffer to fill as page ``index``. Raises ValueError out of turn."""
        if index != self._next or index >= self._count:
            raise ValueError(f"page {index} is asked for where {self._next} of {self._count} is next")
        buffer = self._buffer(index)
        self._next += 1
        return buffer

    def finish(self) -> None:
        """Take the last page. Raises ValueError unless every page was asked for."""
        if self._next != self._count:
            raise ValueError(f"{self._next} of {self._count} pages were filled")

    @abstractmethod
    def _buffer(self, index: int) -> Page:
        """The buffer for page ``index``, whose turn it is."""


class DiscardingWriter(OrderedWriter):
    """Throws away what is written: for a copy that is there already."""

    def __init__(self, count: int, page_bytes: int) -> None:
        super().__init__(count)
        self._scratch = np.empty(page_bytes, np.uint8)

    def _buffer(self, index: int) -> Page:  # noqa: ARG002 - one buffer serves for all
        return self._scratch
