"""The page allocator of host memory: which nodes hold which pages, and which pages are free."""

from collections import OrderedDict

from protocol.errors import ConfigError
from protocol.kv import Pages


class PageAllocator:
    """Hands out ``count`` pages of ``page_tokens`` tokens each, under stamps that rise from ``first_stamp``.

    The pages are numbered from ``first_page`` on.

    A freed page may be handed out again at once, under a higher stamp: an engine that finds another stamp in a page
    than in its plan ignores the page. Pages that were freed first go first, because another instance may still copy
    the last ones to disk. Raises ConfigError for a negative count, empty pages, or a first stamp below 1.
    """

    def __init__(self, count: int, page_tokens: int, first_stamp: int = 1, first_page: int = 0) -> None:
        if count < 0 or page_tokens < 1 or first_stamp < 1:
            raise ConfigError(
                f"an arena needs 0 or more pages of 1 or more tokens, and stamps from 1 on, not {count} pages of "
                f"{page_tokens} tokens from stamp {first_stamp} on"
            )
        self.page_tokens = page_tokens
        self._numbers = range(first_page, first_page + count)
        self._next_stamp = first_stamp
        # A dictionary, as any page may be taken out of it.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(self._numbers)
        self._handed_out: dict[int, Pages] = {}

    @property
    def capacity(self) -> int:
        """Tokens that all pages hold."""
        return len(self._numbers) * self.page_tokens

    def hand_out(self, tokens: int) -> Pages:
        """Pages for ``tokens`` tokens, a multiple of a page. So many pages must be free."""
        wanted = tokens // self.page_tokens
        assert tokens == wanted * self.page_tokens, "a part of a page is asked for"
        assert wanted <= len(self._free), "more pages are asked for than are free"
        pages = Pages(tuple(self._free.popitem(last=False)[0] for _ in range(wanted)), self._next_stamp)
        self._next_stamp += 1
        self._handed_out[pages.stamp] = pages
        return pages

    def give_back(self, pages: Pages) -> None:
        """Free pages that were handed out."""
        assert self._handed_out.pop(pages.stamp, None) == pages, "pages are given back that were not handed out"
        self._free.update(dict.fromkeys(pages.numbers))

    def take_over(self, pages: Pages, tokens: int) -> bool:
        """Register pages that hold a node of ``tokens`` tokens already; False if that cannot be.

        Later stamps are higher than theirs in either case.
        """
        self.see(pages.stamp)
        if (
            len(pages.numbers) * self.page_tokens != tokens
            or len(set(pages.numbers)) < len(pages.numbers)
            or pages.stamp in self._handed_out
            or not all(number in self._free for number in pages.numbers)
        ):
            return False
        for number in pages.numbers:
            del self._free[number]
        self._handed_out[pages.stamp] = pages
        return True

    def see(self, stamp: int) -> None:
        """Skip a stamp that is in use: later stamps are higher."""
        self._next_stamp = max(self._next_stamp, stamp + 1)

    def check_integrity(self, handed_out: list[Pages]) -> None:
        """Assert that exactly these pages are handed out, each once, and that the others are free."""
        assert {pages.stamp: pages for pages in handed_out} == self._handed_out
        assert len(handed_out) == len(self._handed_out)
        numbers = [number for pages in handed_out for number in pages.numbers]
        assert sorted([*numbers, *self._free]) == list(self._numbers)
        assert all(stamp < self._next_stamp for stamp in self._handed_out)
