"""The contract of tiers: they store nodes' KV page by page, and publish each node whole or not at all.

A page has ``page_bytes`` bytes. ``protocol.kv.Paging`` says how many pages a node has; here they are counted
from 0. Pages are passed one at a time, so a caller needs no memory for a whole node. ``OrderedWriter`` checks for all
tiers that every page is written, in order.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.kv import HeldNode, KvNode, Pages
from protocol.tiers import Tier

Page: TypeAlias = NDArray[np.uint8]


class TierError(Exception):
    """Base of the errors of tiers: a copy cannot be read or made. The engine goes on without it."""


class KvMissing(TierError):
    """No copy is published under this key and stamp."""


class Damage(StrEnum):
    """What is wrong with a published copy."""

    HEADER = "header"
    FOREIGN = "foreign"
    SIZE = "size"
    CHECKSUM = "checksum"
    UNREADABLE = "unreadable"
    CHANGED = "changed"


class KvBroken(TierError):
    """A published copy is damaged, as ``damage`` says. Nothing that was read of it may be used."""

    def __init__(self, damage: Damage, message: str) -> None:
        super().__init__(message)
        self.damage = damage


class TierUnavailable(TierError):
    """The tier does not answer now, so whether it has the copy is not known. The copy is not lost."""


class TierFull(TierError):
    """The tier cannot take the copy: it has no room for it, or is read-only."""


class PagesTaken(TierError):
    """The pages belong to others: they were handed out again, or are still being written, or held by a reader."""


class StoredNode(NamedTuple):
    """A published node, with what is needed to name, read or drop it. ``pages`` locate it in host memory."""

    node: KvNode
    pages: Pages | None = None

    @property
    def held(self) -> HeldNode:
        """The node as residency reports list it."""
        return HeldNode(self.node.namespace, self.node.path, self.node.tokens, self.pages)


class TierContents(NamedTuple):
    """What a tier holds: its nodes, and its ``highest_stamp``."""

    nodes: tuple[StoredNode, ...]
    highest_stamp: int = 0


class PageTarget(Protocol):
    """The destination of loads: an engine's blocks, by number."""

    def write(self, pages: Page, rows: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy rows of ``pages``, shape [any, page_bytes], into as many blocks."""

    def in_place(self, block: int) -> list[Page]:
        """A block's own memory, in parts that make up a page in this order. Empty if the CPU cannot access it."""


class PageReader(ABC):
    """Reads the pages of one ``node``, in any order."""

    node: KvNode

    @abstractmethod
    def page(self, index: int) -> Page:
        """Page ``index`` of the node. Read-only, and valid until the next call or the end of reading.

        Raises KvBroken, or IndexError if the node has no such page.
        """

    @abstractmethod
    def load(self, first: int, blocks: Sequence[int], target: PageTarget) -> None:
        """Load the pages from ``first`` on into ``blocks``, in the fastest way that tier and target support.

        Raises KvBroken, or IndexError if the node has no such page. The content of the blocks is undefined then.
        """

    def uncache(self) -> None:  # noqa: B027 - memory has no cache
        """Let the next reads come from the disk, if that is where the copy is, and not from the file cache."""

    def verify(self) -> None:  # noqa: B027 - most have verified each page that they have read, and it never changes
        """Raise KvBroken unless all that was read so far is the node's. Call it before publishing what was read."""


class PageWriter(Protocol):
    """Writes the pages of one node, each once, in ascending order."""

    def page(self, index: int) -> Page:
        """The buffer for page ``index``, to be filled completely before the next call. Its content is undefined.

        Raises TierFull, or ValueError if another page is next.
        """


class KvTier(Protocol):
    """One kind of memory for nodes' KV. All methods but ``close`` are thread-safe.

    ``pages`` says where a node lies in host memory and under which stamp; other tiers ignore it. Copies under different
    stamps are different copies.
    """

    tier: Tier
    on_network: bool = False
    """Whether the copies are on a network, so that each read waits for it."""

    @property
    def identity(self) -> str:
        """A UUID that names the tier on every machine that uses it. Empty if it is this machine's own, or unknown."""
        return ""

    def has(self, key: str, pages: Pages | None) -> bool:
        """Whether this copy is published. Has no side effects, reads no KV, and never raises."""

    def reading(self, key: str, pages: Pages | None) -> AbstractContextManager[PageReader]:
        """Read a published copy.

        Raises KvMissing, KvBroken or TierUnavailable on entry, and KvBroken on exit if the copy has changed meanwhile:
        use what was read only after the block. A broken copy is deleted; there are no other side effects. A read
        within the block also raises TierUnavailable, if the tier is on a network.
        """

    def writing(self, node: KvNode, pages: Pages | None) -> AbstractContextManager[PageWriter]:
        """Write a copy. It is published atomically when the block ends, and discarded if the block raises.

        Raises TierFull or PagesTaken, on entry or exit, and ValueError if the block left pages out. If this copy is
        already published, it stays as it is, and what is written is discarded.
        """

    def drop(self, key: str, pages: Pages | None) -> None:
        """Delete this copy, if it exists; one under another stamp stays. Readers of it may find it broken."""

    def nodes(self) -> list[StoredNode]:
        """All published nodes. Reads every header, so call it at the start or when idle.

        Raises TierUnavailable if the tier is on a network and does not answer.
        """

    @property
    def highest_stamp(self) -> int:
        """The highest stamp that any page was ever written under, dropped copies included; 0 in a tier without pages.

        No copy can be written to this page under a lower stamp.
        """
        return 0

    def close(self) -> None:
        """Close the tier. Published copies stay. Idempotent; no other method may be called afterwards."""


class NullTier(KvTier):
    """A tier without capacity: it is always empty and refuses every copy."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier

    def has(self, key: str, pages: Pages | None) -> bool:  # noqa: ARG002
        """Always False."""
        return False

    def reading(self, key: str, pages: Pages | None) -> AbstractContextManager[PageReader]:  # noqa: ARG002
        """Raise KvMissing."""
        raise KvMissing(f"{key} cannot be read: there is no {self.tier} tier")

    def writing(self, node: KvNode, pages: Pages | None) -> AbstractContextManager[PageWriter]:  # noqa: ARG002
        """Raise TierFull."""
        raise TierFull(f"{node.key} cannot be written: there is no {self.tier} tier")

    def drop(self, key: str, pages: Pages | None) -> None:
        """Do nothing."""

    def nodes(self) -> list[StoredNode]:
        """An empty list."""
        return []

    def close(self) -> None:
        """Do nothing."""


class OrderedWriter:
    """A ``PageWriter`` of ``count`` pages that enforces their order. ``buffer`` returns that of the next page."""

    def __init__(self, count: int, buffer: Callable[[int], Page]) -> None:
        self._count = count
        self._next_buffer = buffer
        self._next = 0

    def page(self, index: int) -> Page:
        """The buffer for page ``index``. Raises ValueError if another page is next."""
        if index != self._next or index >= self._count:
            raise ValueError(f"page {index} is out of order: page {self._next} of {self._count} is next")
        buffer = self._next_buffer(index)
        self._next += 1
        return buffer

    def finish(self) -> None:
        """Finish the last page. Raises ValueError unless every page was filled."""
        if self._next != self._count:
            raise ValueError(f"{self._next} of {self._count} pages were filled")


@contextmanager
def discarding_writer(count: int, page_bytes: int) -> Iterator[PageWriter]:
    """A writer that discards what is written, for a copy that is already published."""
    scratch = np.empty(page_bytes, np.uint8)
    writer = OrderedWriter(count, lambda _: scratch)
    yield writer
    writer.finish()


class SpareBuffers:
    """Buffers of a ``shape`` for pages, each for one user at a time. Thread-safe."""

    def __init__(self, *shape: int) -> None:
        self._shape = shape
        self._spare: list[Page] = []

    @contextmanager
    def taken(self) -> Iterator[Page]:
        """A spare buffer, or a new one, which is spare after the block."""
        try:
            buffer = self._spare.pop()
        except IndexError:
            buffer = np.empty(self._shape, np.uint8)
        try:
            yield buffer
        finally:
            self._spare.append(buffer)

    def clear(self) -> None:
        """Free the spare buffers."""
        self._spare.clear()
