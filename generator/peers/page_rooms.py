"""The places that received pages go to."""

from collections.abc import Callable, Sequence
from typing import Protocol

from generator.tiers.base import Page, PageTarget


class PageRooms(Protocol):
    """The memory for the pages of one reply, which come in order. ``position`` counts them from 0."""

    def parts(self, position: int) -> Sequence[Page]:
        """The memory of the next page, in parts."""

    def filled(self, position: int) -> None:
        """Take note that the page has arrived, and that its checksum is right."""


class BlockRooms:
    """Room in the ``blocks`` of a target: their own memory, or else a buffer that is written to them when it is full.

    ``buffer`` returns that buffer, of shape [any, page_bytes].
    """

    def __init__(self, target: PageTarget, blocks: Sequence[int], buffer: Callable[[], Page]) -> None:
        self._target = target
        self._blocks = blocks
        self._buffer = buffer
        self._waiting: list[int] = []

    def parts(self, position: int) -> Sequence[Page]:
        """The block's parts, or the next row of the buffer."""
        parts = self._target.in_place(self._blocks[position])
        if parts:
            return parts
        self._waiting.append(self._blocks[position])
        return [self._buffer()[len(self._waiting) - 1]]

    def filled(self, position: int) -> None:
        """Write the buffer to its blocks if it is full or no page follows."""
        last = position == len(self._blocks) - 1
        if self._waiting and (last or len(self._waiting) == len(self._buffer())):
            self._target.write(self._buffer(), range(len(self._waiting)), self._waiting)
            self._waiting = []
