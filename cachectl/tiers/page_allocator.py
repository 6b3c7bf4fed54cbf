"""The page allocator of host memory: which nodes hold which pages, and which pages are free."""

from __future__ import annotations

from array import array

from protocol.errors import ConfigError
from protocol.kv import Pages

_LAST = 1 << 31
"""Marks the link of a node's last page. Its other bits are the index of the node's stamp."""
_HELD = 2**32 - 1
"""Stands for a page that is not free, where free pages have the one before them."""
_NONE = _HELD - 1
"""Stands for the page before the first free one."""


class PageAllocator:
    """Hands out ``count`` pages of ``page_tokens`` tokens each, under stamps that rise from ``first_stamp``.

    The pages are numbered from ``first_page`` on. A node's pages are known by the number of the first one.

    A freed page may be handed out again at once, under a higher stamp: an engine that finds another stamp in a page
    than in its plan ignores the page. Pages that were freed first go first, because another instance may still copy
    the last ones to disk. Raises ConfigError for a negative count, empty pages, 2^31 of them or more, or a first
    stamp below 1.

    An arena may have millions of pages, so each takes 4 bytes: a link to the next page of its node, or to the next free
    one. A node takes 8 bytes more, for its stamp.
    """

    def __init__(self, count: int, page_tokens: int, first_stamp: int = 1, first_page: int = 0) -> None:
        if not 0 <= count < _LAST or page_tokens < 1 or first_stamp < 1:
            raise ConfigError(
                f"an arena needs 0 or more pages of 1 or more tokens, and stamps from 1 on, not {count} pages of "
                f"{page_tokens} tokens from stamp {first_stamp} on"
            )
        self.page_tokens = page_tokens
        self._first_page = first_page
        self._next_stamp = first_stamp
        self._links = array("I", range(1, count + 1))
        # The link of the last free page has no meaning.
        self._first_free, self._last_free, self._free = 0, count - 1, count
        # 0 for a place that no node has.
        self._stamps = array("Q")
        self._unused = array("I")
        # While nodes are restored: the free page before each free one, and the stamps in use.
        self._before: array[int] | None = None
        self._known: set[int] = set()

    @property
    def capacity(self) -> int:
        """Tokens that all pages hold."""
        return len(self._links) * self.page_tokens

    def pages(self, first: int) -> Pages:
        """The pages of the node whose first page has this number."""
        links, offset = self._links, self._first_page
        index = first - offset
        assert 0 <= index < len(links), "there is no such page"
        numbers: list[int] = []
        while not index & _LAST:
            numbers.append(index + offset)
            index = links[index]
        return Pages(tuple(numbers), self._stamps[index ^ _LAST])

    def hand_out(self, tokens: int) -> Pages:
        """Pages for ``tokens`` tokens, one or more whole pages, which must be free."""
        wanted = tokens // self.page_tokens
        assert tokens == wanted * self.page_tokens, "a part of a page is asked for"
        assert 0 < wanted <= self._free, "more pages are asked for than are free, or none"
        self.settle()
        links, offset = self._links, self._first_page
        numbers: list[int] = []
        index = last = self._first_free
        for _ in range(wanted):
            numbers.append(index + offset)
            last, index = index, links[index]
        self._first_free = index
        self._free -= wanted
        stamp = self._next_stamp
        self._next_stamp += 1
        links[last] = self._keep(stamp)
        return Pages(tuple(numbers), stamp)

    def give_back(self, pages: Pages) -> None:
        """Free pages that were handed out."""
        assert self._holds(pages), "pages are given back that were not handed out"
        self.settle()
        links = self._links
        first, last = pages.numbers[0] - self._first_page, pages.numbers[-1] - self._first_page
        at = links[last] ^ _LAST
        self._stamps[at] = 0
        self._unused.append(at)
        if self._free:
            links[self._last_free] = first
        else:
            self._first_free = first
        # A link within the arena, though without a meaning: it marks no node any more.
        links[last] = 0
        self._last_free = last
        self._free += len(pages.numbers)

    def take_over(self, pages: Pages, tokens: int) -> bool:
        """Register pages that hold a node of ``tokens`` tokens already; False if that cannot be.

        Later stamps are higher than theirs in either case. ``settle`` frees the memory that this takes.
        """
        self.see(pages.stamp)
        before = self._before
        if before is None:
            before = self._unsettle()
        indices = [number - self._first_page for number in pages.numbers]
        if (
            not indices
            or len(indices) * self.page_tokens != tokens
            or len(set(indices)) < len(indices)
            or pages.stamp < 1
            or pages.stamp in self._known
            or not all(0 <= index < len(before) and before[index] != _HELD for index in indices)
        ):
            return False
        for index in indices:
            self._take_out(index, before)
        links = self._links
        for place in range(1, len(indices)):
            links[indices[place - 1]] = indices[place]
        links[indices[-1]] = self._keep(pages.stamp)
        self._known.add(pages.stamp)
        return True

    def settle(self) -> None:
        """End a restore. Handing out and giving back end it, too."""
        if self._before is not None:
            self._before = None
            self._known = set()

    def see(self, stamp: int) -> None:
        """Skip a stamp that is in use: later stamps are higher."""
        self._next_stamp = max(self._next_stamp, stamp + 1)

    def _keep(self, stamp: int) -> int:
        """Keep a node's stamp; the link of the node's last page."""
        if self._unused:
            at = self._unused.pop()
            self._stamps[at] = stamp
        else:
            at = len(self._stamps)
            self._stamps.append(stamp)
        return at | _LAST

    def _holds(self, pages: Pages) -> bool:
        """Whether pages are a node's, under its stamp. Only the last one is looked at, which tells both."""
        last = pages.numbers[-1] - self._first_page if pages.numbers else -1
        if not 0 <= last < len(self._links):
            return False
        link = self._links[last]
        # Links of free pages have no such mark.
        return bool(link & _LAST) and self._stamps[link ^ _LAST] == pages.stamp

    def _unsettle(self) -> array[int]:
        """Find the free page before each free one, as any page may be taken out, and the stamps in use."""
        links = self._links
        before = array("I", [_HELD]) * len(links)
        previous, index = _NONE, self._first_free
        for _ in range(self._free):
            before[index] = previous
            previous, index = index, links[index]
        self._before = before
        self._known = set(self._stamps)
        return before

    def _take_out(self, index: int, before: array[int]) -> None:
        """Take a page out of the free ones."""
        links, previous = self._links, before[index]
        if previous == _NONE:
            self._first_free = links[index]
        else:
            links[previous] = links[index]
        if index == self._last_free:
            self._last_free = previous
        else:
            before[links[index]] = previous
        before[index] = _HELD
        self._free -= 1
