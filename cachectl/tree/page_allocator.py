"""The pages of the host memory's arena: which nodes they are handed out for, and which are free."""

from protocol.errors import ConfigError
from protocol.kv import Pages


class PageAllocator:
    """Executor out ``count`` pages of ``page_tokens`` tokens each, under stamps that rise from ``first_stamp``.

    Raises ConfigError for a negative count, pages without a token, and a first stamp below 1.
    """

    def __init__(self, count: int, page_tokens: int, first_stamp: int = 1) -> None:
        if count < 0 or page_tokens < 1 or first_stamp < 1:
            raise ConfigError(f"there is no arena of {count} pages of {page_tokens} tokens from stamp {first_stamp} on")
        self.page_tokens = page_tokens
        self._count = count
        self._next_stamp = first_stamp
        # The last one is the next to go, the lowest numbers first; a dictionary, for any may be taken out of it.
        self._free: dict[int, None] = dict.fromkeys(reversed(range(count)))
        self._handed_out: dict[int, Pages] = {}

    @property
    def capacity(self) -> int:
        """Tokens that all pages hold."""
        return self._count * self.page_tokens

    def hand_out(self, tokens: int) -> Pages:
        """Pages for so many tokens, a multiple of a page's. There must be as many free ones."""
        wanted = tokens // self.page_tokens
        assert tokens == wanted * self.page_tokens, "a part of a page is asked for"
        assert wanted <= len(self._free), "more pages are asked for than the budget has"
        pages = Pages(tuple(self._free.popitem()[0] for _ in range(wanted)), self._next_stamp)
        self._next_stamp += 1
        self._handed_out[pages.stamp] = pages
        return pages

    def give_back(self, pages: Pages) -> None:
        """Take pages back that were handed out: they may be handed out again at once, under another stamp."""
        assert self._handed_out.pop(pages.stamp, None) == pages, "pages are given back that were not handed out"
        self._free.update(dict.fromkeys(reversed(pages.numbers)))

    def take_over(self, pages: Pages, tokens: int) -> bool:
        """Take note that just these pages hold a node of so many tokens; False where that cannot be.

        In either case later stamps are higher than theirs.
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
        """Hear of a stamp that was used before: later ones are higher."""
        self._next_stamp = max(self._next_stamp, stamp + 1)

    def check_integrity(self, handed_out: list[Pages]) -> None:
        """Assert that just these pages are handed out, each once, and that the others are free."""
        assert {pages.stamp: pages for pages in handed_out} == self._handed_out
        assert len(handed_out) == len(self._handed_out)
        numbers = [number for pages in handed_out for number in pages.numbers]
        assert sorted([*numbers, *self._free]) == list(range(self._count))
        assert all(stamp < self._next_stamp for stamp in self._handed_out)
