"""New host memory as the target of loads."""

from collections.abc import Sequence

from generator.tiers.base import Page


class HostPages:
    """A ``PageTarget`` whose blocks are the rows of ``pages``, shape [any, page_bytes]."""

    def __init__(self, pages: Page) -> None:
        self._pages = pages

    def write(self, pages: Page, rows: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy rows of other pages into as many of these."""
        self._pages[list(blocks)] = pages[list(rows)]

    def in_place(self, block: int) -> list[Page]:
        """A page's own memory."""
        return [self._pages[block]]
