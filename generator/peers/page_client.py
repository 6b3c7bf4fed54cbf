"""The client of other machines' page servers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from generator.peers.connections import ConnectionPool, Reply, connect
from generator.peers.handshake import PeerKey
from generator.peers.wire import (
    OUTCOMES,
    Head,
    PageFormat,
    PeerUnreachable,
    ReadRequest,
    Reason,
    ReplyEnd,
    Status,
    decode_head,
    framed,
)
from generator.tiers.base import Damage, KvBroken, KvMissing, Page, PageTarget, SpareBuffers
from protocol.kv import Pages
from protocol.tiers import Tier

_BUFFER_BYTES = 8 << 20
"""Pages that cannot be received in place are written to their blocks in batches of this size, or of one page."""


class _BlockRooms:
    """Room for the pages of one reply, which come in order, in the ``blocks`` of a target.

    That is their own memory, or else a ``buffer`` of shape [any, page_bytes], which is written to them when it is full.
    ``position`` counts the pages from 0.
    """

    def __init__(self, target: PageTarget, blocks: Sequence[int], buffer: Page) -> None:
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
        return [self._buffer[len(self._waiting) - 1]]

    def filled(self, position: int) -> None:
        """Take a page that has arrived. Writes the buffer to its blocks if it is full or no page follows."""
        last = position == len(self._blocks) - 1
        if self._waiting and (last or len(self._waiting) == len(self._buffer)):
            self._target.write(self._buffer, range(len(self._waiting)), self._waiting)
            self._waiting = []


class RemoteCopy(NamedTuple):
    """A node's copy at the peer ``address``: its key and tier there, and its pages in that machine's host memory."""

    address: str
    key: str
    tier: Tier
    pages: Pages | None


class RemoteReader:
    """Reads the pages of one copy, in any order, until ``deadline`` in seconds of ``time.monotonic()``.

    Pages that cannot be received in place go through the ``buffer``, of shape [any, page_bytes].

    Each call is one request. When it returns, all its pages are verified: their checksums match, and the copy did not
    change while it was sent. One thread uses a reader at a time.

    All calls raise PeerUnreachable, also at the deadline, and if a checksum does not match; KvMissing or KvBroken if
    that is what the peer says of the copy; and IndexError if the node has no such page.
    """

    def __init__(self, pool: ConnectionPool, copy: RemoteCopy, deadline: float, buffer: Page) -> None:
        self._pool = pool
        self._copy = copy
        self._deadline = deadline
        self._buffer = buffer

    def load(self, first: int, blocks: Sequence[int], target: PageTarget) -> None:
        """Load the pages from ``first`` on into ``blocks``: into their own memory, or else through a buffer.

        The content of the blocks is undefined after an error.
        """
        if not blocks:
            return
        address, key, tier, pages = self._copy
        if first < 0:
            raise IndexError(f"page {first} of {key}")
        request = framed(ReadRequest(key, tier, pages, first, len(blocks)))
        with self._pool.asking(address, request, self._deadline) as reply:
            outcome = self._receive(reply, len(blocks), _BlockRooms(target, blocks, self._buffer))
        detail = f"{address} says: {outcome.detail}"
        match outcome.status:
            case Status.MISSING:
                raise KvMissing(detail)
            case Status.BROKEN:
                raise KvBroken(outcome.damage or Damage.CHANGED, detail)
            case Status.NO_SUCH_PAGE:
                raise IndexError(detail)

    def _receive(self, reply: Reply, count: int, rooms: _BlockRooms) -> ReplyEnd:
        """Receive a whole reply, and verify the pages' checksums. An outcome that is ``ok`` has had all pages."""
        head, stream = reply
        for position in range(count):
            kind, checksum = self._decoded(reply)
            if kind is Head.CLOSING:
                outcome = stream.receive_message(OUTCOMES, self._deadline)
                if outcome.status is Status.OK:
                    raise stream.violation(f"sends {position} of {count} pages")
                return outcome
            received = stream.receive_page(rooms.parts(position), head, self._deadline)
            if received != checksum:
                raise PeerUnreachable(
                    Reason.DAMAGED,
                    f"page {position + 1} of {count} of {self._copy.key} from {self._copy.address} differs from its "
                    "checksum",
                )
            rooms.filled(position)
        if self._decoded(reply)[0] is not Head.CLOSING:
            raise stream.violation(f"sends more than {count} pages")
        return stream.receive_message(OUTCOMES, self._deadline)

    def _decoded(self, reply: Reply) -> tuple[Head, int]:
        try:
            return decode_head(reply.head)
        except ValueError as error:
            raise reply.stream.violation(f"sends what is no page: {error}") from error


class PeerPages:
    """Reads the pages of ``rank`` in other machines' memory and disks. Thread-safe.

    Peers have the same ``key``, and KV of the same ``fingerprint``. One that does not answer for ``timeout_s`` seconds
    is given up. Connections stay open for later reads, ``most_idle`` of them at most. Raises ConfigError if the key is
    too short.
    """

    def __init__(
        self, fingerprint: str, page_bytes: int, rank: int, key: str, timeout_s: float, most_idle: int = 32
    ) -> None:
        own_format = PageFormat(fingerprint, page_bytes, rank)
        self._pool = ConnectionPool(partial(connect, own_format, PeerKey(key), timeout_s), most_idle)
        # Memory that no page has touched takes no room, so a reader has a buffer even if it needs none.
        self._buffers = SpareBuffers(max(1, _BUFFER_BYTES // page_bytes), page_bytes)

    @contextmanager
    def reading(
        self, address: str, key: str, tier: Tier, pages: Pages | None, deadline: float
    ) -> Iterator[RemoteReader]:
        """Read the copy of node ``key`` in a tier of the peer ``address``, ``host:port``.

        ``pages`` locate it in the peer's host memory; other tiers ignore it. All reads end by ``deadline``, in seconds
        of ``time.monotonic()``. Nothing is sent before the first read.
        """
        with self._buffers.taken() as buffer:
            yield RemoteReader(self._pool, RemoteCopy(address, key, tier, pages), deadline, buffer)

    def close(self) -> None:
        """Close all connections. Reads under way fail, and so do later ones. Idempotent."""
        self._pool.close()
        self._buffers.clear()
