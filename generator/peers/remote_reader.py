"""Reading a node's pages at a peer."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from generator.peers.connection_pool import ConnectionPool, Reply
from generator.peers.errors import PeerUnreachable, Reason
from generator.peers.page_rooms import BlockRooms, PageRooms
from generator.peers.wire import OUTCOMES, Head, ReadRequest, ReplyEnd, Status, decode_head, framed
from generator.tiers.base import Damage, KvBroken, KvMissing, Page, PageTarget
from protocol.kv import Pages
from protocol.tiers import Tier


class RemoteCopy(NamedTuple):
    """A node's copy at the peer ``address``: its key and tier there, and its pages in that machine's host memory."""

    address: str
    key: str
    tier: Tier
    pages: Pages | None


class RemoteReader:
    """Reads the pages of one copy, in any order, until ``deadline`` in seconds of ``time.monotonic()``.

    Each call is one request. When it returns, all its pages are verified: their checksums match, and the copy did not
    change while it was sent. One thread uses a reader at a time.

    All calls raise PeerUnreachable, also at the deadline, and if a checksum does not match; KvMissing or KvBroken if
    that is what the peer says of the copy; and IndexError if the node has no such page.
    """

    def __init__(self, pool: ConnectionPool, copy: RemoteCopy, deadline: float, buffer: Callable[[], Page]) -> None:
        """``buffer`` returns memory for pages, of shape [any, page_bytes], always the same."""
        self._pool = pool
        self._copy = copy
        self._deadline = deadline
        self._buffer = buffer

    def load(self, first: int, blocks: Sequence[int], target: PageTarget) -> None:
        """Load the pages from ``first`` on into ``blocks``: into their own memory, or else through a buffer.

        The content of the blocks is undefined after an error.
        """
        if blocks:
            self._read(first, len(blocks), BlockRooms(target, blocks, self._buffer))

    def _read(self, first: int, count: int, rooms: PageRooms) -> None:
        address, key, tier, pages = self._copy
        if first < 0:
            raise IndexError(f"page {first} of {key}")
        request = framed(ReadRequest(key, tier, pages, first, count))
        with self._pool.asking(address, request, self._deadline) as reply:
            outcome = self._receive(reply, count, rooms)
        detail = f"{address} says: {outcome.detail}"
        match outcome.status:
            case Status.MISSING:
                raise KvMissing(detail)
            case Status.BROKEN:
                raise KvBroken(outcome.damage or Damage.CHANGED, detail)
            case Status.NO_SUCH_PAGE:
                raise IndexError(detail)

    def _receive(self, reply: Reply, count: int, rooms: PageRooms) -> ReplyEnd:
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
