"""The host memory tier: an arena of pages that all instances of a machine share."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from enum import IntEnum
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from generator.tiers.arena_file import PAGE_HEADER, ArenaFile, ByteLocks, Geometry, decode_node, encode_node
from generator.tiers.base import (
    Damage,
    KvBroken,
    KvMissing,
    KvTier,
    OrderedWriter,
    Page,
    PageReader,
    PagesTaken,
    PageTarget,
    PageWriter,
    StoredNode,
    TierFull,
    discarding_writer,
)
from protocol.kv import KvNode, Pages, Paging
from protocol.tiers import Tier

_HEADER_ROOM = PAGE_HEADER["node"].itemsize
"""Bytes of a node's record that one page's header takes."""
_HEADERS = 0
"""The byte that is locked while page headers change. Byte n + 1 is locked while page n is written, or held."""


_SPARE_LOCKS = 16


class State(IntEnum):
    """State of a page."""

    FREE = 0
    WRITING = 1
    READY = 2


class HostArena(KvTier):
    """A tier of pages in the file at ``path``. A stack has one arena on each machine, with its memory reserved.

    The arena allocates nothing. The controller hands out pages with stamps, and a page belongs to the highest stamp
    that it was ever written under. A writer locks its pages until it is done or dead. ``reading`` takes no locks: it
    checks the headers before and after. ``hold`` shares the pages' locks, so that no writer gets them.

    Pages have no checksums, because those would cost more than the copy, and memory is trusted, unlike a disk. Pages
    that a killed process was writing are freed when the next process attaches.

    If there is a ``pin``, it pins the memory while the arena is attached, and returns the function that unpins it.

    Memory order: headers change under a lock and KV is written between two holds of it, so the system calls order both.
    x86 orders a reader's loads.
    """

    tier = Tier.HOST

    def __init__(
        self,
        path: Path,
        fingerprint: str,
        paging: Paging,
        page_bytes: int,
        page_count: int,
        pin: Callable[[Page], Callable[[], None]] | None = None,
    ) -> None:
        self._paging = paging
        self._geometry = Geometry(fingerprint, paging.page_tokens, page_bytes, page_count)
        self._file = ArenaFile(path, self._geometry)
        with self._file.locks() as locks, locks.waiting(_HEADERS):
            self._recover(locks)
        self._spare_locks: list[ByteLocks] = []
        self._pinned = ExitStack()
        if pin is not None:
            self._pinned.callback(pin(self._file.pages))

    def has(self, key: str, pages: Pages | None) -> bool:
        """Whether all these pages hold the node, under this stamp."""
        return pages is not None and self._node_in(pages, key) is not None

    @contextmanager
    def reading(self, key: str, pages: Pages | None) -> Iterator[PageReader]:
        """Read the pages in place, without a copy."""
        node = self._node_in(pages, key) if pages is not None else None
        if pages is None or node is None:
            raise KvMissing(f"{key} is not in the arena at {pages}")

        reader = _ArenaReader(node, self._file.pages, pages, partial(self.has, key, pages))
        yield reader
        reader.verify()

    def hold(self, copies: Mapping[str, Pages]) -> "HeldPages":
        """Hold copies, by key, so that nobody writes to their pages. Those that cannot be held are ``missing``.

        Writers to held pages raise PagesTaken. Raises OSError if the operating system refuses the locks.
        """
        locks = self._spare_locks.pop() if self._spare_locks else self._file.new_locks()
        try:
            missing = [key for key, pages in copies.items() if not self._is_held(locks, key, pages)]
        except BaseException:
            locks.close()
            raise
        return HeldPages(self._file.pages, copies, missing, partial(self._let_go, locks))

    def _is_held(self, locks: ByteLocks, key: str, pages: Pages) -> bool:
        if not pages.numbers or not self._exist(pages):
            return False
        shared = all(locks.share(first + 1, count) for first, count in _runs(pages.numbers))
        return shared and self._recorded_in(pages, key) is not None

    def _let_go(self, locks: ByteLocks) -> None:
        if len(self._spare_locks) == _SPARE_LOCKS:
            locks.close()
            return
        # To open a file takes longer than all of its locks.
        locks.release_all()
        self._spare_locks.append(locks)

    @contextmanager
    def writing(self, node: KvNode, pages: Pages | None) -> Iterator[PageWriter]:
        """Write the pages in place, without a copy."""
        count = self._paging.page_count(node.prefix_tokens, node.tokens)
        if pages is None or not count or len(pages.numbers) != count or not self._exist(pages):
            raise TierFull(f"{node.key} needs {count} pages of the arena, but was given {pages}")
        with self._file.locks() as locks:
            if not self._claim(node, pages, locks):
                with discarding_writer(count, self._geometry.page_bytes) as discarding:
                    yield discarding
                return
            try:
                writer = OrderedWriter(count, lambda index: self._file.pages[pages.numbers[index]])
                yield writer
                writer.finish()
            except BaseException:
                self._set(pages.numbers, State.FREE, locks)
                raise
            # The first page is published last, so that a node is never visible with a page missing.
            self._set(pages.numbers[::-1], State.READY, locks)

    def drop(self, key: str, pages: Pages | None) -> None:  # noqa: ARG002 - a stamp belongs to one node
        """Free the pages that still have this stamp. A writer still at work on them still publishes them."""
        if pages is None or not self._exist(pages):
            return
        with self._file.locks() as locks, locks.waiting(_HEADERS):
            for number in pages.numbers:
                if self._stamps[number] == pages.stamp:
                    self._states[number] = State.FREE

    def nodes(self) -> list[StoredNode]:
        """The nodes whose pages are all there, in the order of their stamps."""
        ready = np.flatnonzero(self._states == State.READY)
        order = ready[np.lexsort((self._field("index")[ready], self._stamps[ready]))]
        found = []
        for group in np.split(order, np.flatnonzero(np.diff(self._stamps[order])) + 1):
            pages = Pages(tuple(group.tolist()), int(self._stamps[group].max(initial=0)))
            node = self._node_in(pages, None)
            if node is not None:
                found.append(StoredNode(node, pages))
        return found

    @property
    def highest_stamp(self) -> int:
        """The highest stamp in any page's header, in any state of the page."""
        return int(self._stamps.max(initial=0))

    def close(self) -> None:
        """Detach from the arena. Its file stays."""
        self._pinned.close()
        while self._spare_locks:
            self._spare_locks.pop().close()
        self._file.close()

    @property
    def _states(self) -> NDArray[np.uint64]:
        return self._field("state")

    @property
    def _stamps(self) -> NDArray[np.uint64]:
        return self._field("stamp")

    def _field(self, name: str) -> NDArray[np.uint64]:
        field: NDArray[np.uint64] = self._file.headers[name]
        return field

    def _exist(self, pages: Pages) -> bool:
        return all(0 <= number < self._geometry.page_count for number in pages.numbers)

    def _node_in(self, pages: Pages, key: str | None) -> KvNode | None:
        """The node published in exactly these pages. None if there is none, or if it has another key."""
        node = self._recorded_in(pages, key) if pages.numbers and self._exist(pages) else None
        # The record may have changed while it was read, but not without the pages' state or stamp.
        return node if node is not None and self._all_ready(pages) else None

    def _recorded_in(self, pages: Pages, key: str | None) -> KvNode | None:
        """The same of pages that exist, whose record may change while it is read unless they are held."""
        node = decode_node(self._record(pages.numbers)) if self._all_ready(pages) else None
        return node if node is not None and key in (None, node.key) else None

    def _all_ready(self, pages: Pages) -> bool:
        """Whether these are all the pages of one published node, in order, under this stamp."""
        headers, numbers, count = self._file.headers, list(pages.numbers), len(pages.numbers)
        return bool(
            (self._states[numbers] == State.READY).all()
            and (self._stamps[numbers] == pages.stamp).all()
            and (headers["index"][numbers] == np.arange(count)).all()
            and (headers["count"][numbers] == count).all()
        )

    def _record(self, numbers: Sequence[int]) -> bytes:
        """The record in the headers of a node's pages."""
        headers = self._file.headers
        size = int(headers["node_bytes"][numbers[0]])
        part: bytes = headers["node"][list(numbers[: -(-size // _HEADER_ROOM)])].tobytes()
        return part[:size]

    def _claim(self, node: KvNode, pages: Pages, locks: ByteLocks) -> bool:
        """Lock the pages and mark them as being written. Returns False if they already hold the node.

        Raises PagesTaken or TierFull.
        """
        headers, numbers = self._file.headers, list(pages.numbers)
        record, room = encode_node(node), len(numbers) * _HEADER_ROOM
        if len(record) > room:
            raise TierFull(
                f"the path of {node.key} has {len(node.path)} segments, whose record takes {len(record)} bytes: the "
                f"headers of its pages hold {room} bytes"
            )
        used = -(-len(record) // _HEADER_ROOM)
        parts = np.frombuffer(record.ljust(used * _HEADER_ROOM, b"\0"), np.uint8).reshape(used, _HEADER_ROOM)
        with locks.waiting(_HEADERS):
            if (self._stamps[numbers] > pages.stamp).any():
                raise PagesTaken(f"the pages for {node.key} were handed out again after stamp {pages.stamp}")
            if self._node_in(pages, node.key) is not None:
                return False
            if not all(locks.take(number + 1) for number in numbers):
                raise PagesTaken(f"the pages for {node.key} are still being written, or held")
            overwritten = self._stamps[numbers][self._states[numbers] == State.READY]
            self._states[numbers] = State.WRITING
            self._stamps[numbers] = pages.stamp
            headers["index"][numbers] = np.arange(len(numbers))
            headers["count"][numbers] = len(numbers)
            headers["node_bytes"][numbers[0]] = len(record)
            headers["node"][numbers[:used]] = parts
            if overwritten.size:
                # Nobody may come to drop the rest of a node that has lost a page.
                self._states[(self._states == State.READY) & np.isin(self._stamps, overwritten)] = State.FREE
        return True

    def _set(self, numbers: Sequence[int], state: State, locks: ByteLocks) -> None:
        with locks.waiting(_HEADERS):
            for number in numbers:
                self._states[number] = state

    def _recover(self, locks: ByteLocks) -> None:
        """Free the pages of dead writers, and the rest of nodes that have lost a page to another node."""
        whole = {number for stored in self.nodes() if stored.pages for number in stored.pages.numbers}
        for number in np.flatnonzero(self._states != State.FREE).tolist():
            if number not in whole and locks.take(number + 1):
                self._states[number] = State.FREE


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive numbers, as the first one and how many there are."""
    cuts = [at for at in range(1, len(numbers)) if numbers[at] != numbers[at - 1] + 1]
    for begin, end in pairwise([0, *cuts, len(numbers)]):
        yield numbers[begin], end - begin


class HeldPages:
    """Copies in the arena whose pages nobody writes to until ``let_go``. The ``missing`` ones are not there."""

    def __init__(
        self, memory: Page, copies: Mapping[str, Pages], missing: Sequence[str], let_go: Callable[[], None]
    ) -> None:
        self.missing = missing
        self.let_go = let_go
        self._memory = memory
        self._copies = copies

    @property
    def count(self) -> int:
        """How many pages are held."""
        return sum(len(pages.numbers) for pages in self._copies.values())

    def load(self, parts: Iterable[tuple[str, int, Sequence[int]]], target: PageTarget) -> None:
        """Load parts of copies with one copy: pages from the first one on into as many blocks of the ``target``.

        Raises IndexError if a copy has no such page.
        """
        rows: list[int] = []
        blocks: list[int] = []
        for key, first, into in parts:
            numbers = self._copies[key].numbers
            if not 0 <= first <= len(numbers) - len(into):
                raise IndexError(f"pages {first} to {first + len(into)} of {len(numbers)}")
            rows += numbers[first : first + len(into)]
            blocks += into
        target.write(self._memory, rows, blocks)


class _ArenaReader(PageReader):
    """Reads the arena's memory."""

    def __init__(self, node: KvNode, pages: Page, of: Pages, is_there: Callable[[], bool]) -> None:
        self.node = node
        self._pages = pages
        self._numbers = of.numbers
        self._is_there = is_there

    def page(self, index: int) -> Page:
        """Page ``index``, in place. Raises IndexError."""
        self._check(index)
        page: Page = self._pages[self._numbers[index]]
        return page

    def load(self, first: int, blocks: Sequence[int], target: PageTarget) -> None:
        """Load all pages with one copy, out of the arena's memory. Raises IndexError."""
        if blocks:
            self._check(first)
            self._check(first + len(blocks) - 1)
            target.write(self._pages, self._numbers[first : first + len(blocks)], blocks)

    def verify(self) -> None:
        """Check that the pages still hold the node. Raises KvBroken."""
        if not self._is_there():
            raise KvBroken(Damage.CHANGED, f"{self.node.key} was dropped or overwritten while it was read")

    def _check(self, index: int) -> None:
        if not 0 <= index < len(self._numbers):
            raise IndexError(f"page {index} of {len(self._numbers)}")
