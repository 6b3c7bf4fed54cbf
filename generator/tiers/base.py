"""What every tier promises: nodes' KV, page by page, published whole or not at all.

A page is ``page_bytes`` bytes. A node has as many as ``protocol.kv.pages_spanned`` says, here counted from 0. Pages go
one at a time, so that nobody ever holds a whole node beside the tier's own copy of it.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.kv import HeldNode, KvNode, Pages
from protocol.tiers import Tier

Page: TypeAlias = NDArray[np.uint8]


class TierError(Exception):
    """Root of what tiers raise: the copy cannot be had, or cannot be made. The engine goes on without it."""


class KvMissing(TierError):
    """Nothing is published under this key and stamp."""


class Damage(StrEnum):
    """What is wrong with a copy that was published."""

    HEADER = "header"
    FOREIGN = "foreign"
    SIZE = "size"
    CHECKSUM = "checksum"
    UNREADABLE = "unreadable"
    CHANGED = "changed"


class KvBroken(TierError):
    """A copy was there and is not good: nothing that was read of it may be used. ``damage`` says why."""

    def __init__(self, damage: Damage, message: str) -> None:
        super().__init__(message)
        self.damage = damage


class TierFull(TierError):
    """The tier takes no such copy: it has no room for it, or may not be written."""


class PagesTaken(TierError):
    """The pages are another writer's: they were handed out again, or who had them before is still at work in them."""


class StoredNode(NamedTuple):
    """A published node with all that is needed to name, read or drop it. ``pages`` are the host memory's."""

    node: KvNode
    pages: Pages | None = None

    @property
    def held(self) -> HeldNode:
        """The same, as residency reports have it."""
        return HeldNode(self.node.namespace, self.node.path, self.node.tokens, self.pages)


class PageTarget(Protocol):
    """Where pages are loaded to: an engine's blocks, by number."""

    def write(self, pages: Page, rows: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy rows of ``pages``, shape [any, page_bytes], into as many blocks."""

    def in_place(self, block: int) -> list[Page]:
        """A block's own memory, whose parts make up a page in this order. None of them where a CPU cannot reach it."""


class PageReader(Protocol):
    """Reads pages of one node, any of them, in any order. ``node`` is the one that they are of."""

    node: KvNode

    def page(self, index: int) -> Page:
        """Page ``index`` of the node; not to be written to, and valid until the next call or the end of reading.

        Raises KvBroken, IndexError where the node has no such page.
        """

    def load(self, first: int, blocks: Sequence[int], target: PageTarget) -> None:
        """Bring the pages from ``first`` on into ``blocks``, the quickest way that tier and target have in common.

        Raises KvBroken, IndexError where the node has no such page; what the blocks hold is arbitrary then.
        """


class PageWriter(Protocol):
    """Takes the pages of one node, each once, in ascending order."""

    def page(self, index: int) -> Page:
        """The buffer to fill as page ``index``, all of it, before the next call; what it holds until then is arbitrary.

        Raises TierFull, ValueError out of turn.
        """


class KvTier(Protocol):
    """One kind of memory for nodes' KV. Any number of threads may call any method at once, but for ``close``.

    ``pages`` says where a node lies in host memory and under which stamp; other tiers ignore it. A copy under another
    stamp is another copy.
    """

    tier: Tier

    def has(self, key: str, pages: Pages | None) -> bool:
        """Whether this copy is published. Changes nothing, reads no KV, never raises."""

    def reading(self, key: str, pages: Pages | None) -> AbstractContextManager[PageReader]:
        """A look at a published copy. Raises KvMissing or KvBroken on entry, KvBroken on exit if it changed meanwhile.

        So what was read may be used only after the block. Changes nothing, but that a broken copy is deleted.
        """

    def writing(self, node: KvNode, pages: Pages | None) -> AbstractContextManager[PageWriter]:
        """A copy in the making: published in one step when the block ends, and gone without a trace if it raises.

        Raises TierFull or PagesTaken, on entry or exit, and ValueError where the block left pages out. Where this copy
        is published already, it stays as it is, and what is written is thrown away.
        """

    def drop(self, key: str, pages: Pages | None) -> None:
        """Delete this copy, if it is there; one under another stamp stays. Readers of it may find it broken."""

    def nodes(self) -> list[StoredNode]:
        """What is published, by the tier's own account. Looks at every header: for starts and for idle time."""

    @property
    def used_bytes(self) -> int:
        """The bytes that published copies take."""

    def check_integrity(self) -> None:
        """Assert that the tier's account is true of what lies there. For tests, while nobody writes."""

    def close(self) -> None:
        """Let go of the tier; what is published stays. Idempotent. Nothing else may be called from then on."""
