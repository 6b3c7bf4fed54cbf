"""Progress of a load that several threads share."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from generator.connector.step_jobs import DonorPages, LoadResult, Piece
from generator.peers.errors import PeerUnreachable
from generator.tiers.base import KvBroken, KvMissing, TierUnavailable
from protocol.kv import LostCopy, PeerCopy, PeerRead
from protocol.tiers import Tier


@dataclass
class _PeerProgress:
    """What was read at one peer so far, from ``began`` to ``ended``, in seconds of the monotonic clock."""

    address: str
    began: float
    ended: float
    pages: int = 0
    failed: bool = False


class LoadProgress:
    """Collects what the ``shares`` of a load read, and what they could not. Pages hold ``page_tokens`` tokens.

    A read at a peer that begins after ``fair_until``, in seconds of the monotonic clock, has too little time left to
    say anything about the peer. All methods are thread-safe.
    """

    def __init__(self, shares: int, page_tokens: int, fair_until: float) -> None:
        self._open_shares = shares
        self._page_tokens = page_tokens
        self._fair_until = fair_until
        self._began = time.monotonic()
        self._lost: dict[LostCopy, None] = {}
        self._unread: dict[LostCopy, None] = {}
        # By location and tier.
        self._peers: dict[tuple[str, Tier], _PeerProgress] = {}
        self._lock = threading.Lock()
        self.failed_blocks: set[int] = set()
        """The blocks that could not be filled."""

    def read(self, source: Piece | DonorPages, pages: int, began: float) -> None:
        """Count ``pages`` that were read since ``began``; those of this location are not counted."""
        if source.peer is not None:
            with self._lock:
                self._peer(source.peer, began).pages += pages

    def missed(self, source: Piece | DonorPages, error: Exception, began: float, blocks: Sequence[int] = ()) -> None:
        """Record that a copy could not be read since ``began``, and the ``blocks`` that it was to fill.

        It is lost if its location does not have it. That is not known if a peer, or an object store, did not serve it.
        """
        known = (KvMissing, KvBroken) if source.peer is not None else Exception
        with self._lock:
            self.failed_blocks.update(blocks)
            if isinstance(error, known) and not isinstance(error, TierUnavailable):
                self._lost[source.copy] = None
                return
            self._unread[source.copy] = None
            if source.peer is not None and isinstance(error, PeerUnreachable) and began <= self._fair_until:
                self._peer(source.peer, began).failed = True

    def failed(self, blocks: Sequence[int]) -> None:
        """Record ``blocks`` that could not be filled, although no copy is missing."""
        with self._lock:
            self.failed_blocks.update(blocks)

    def end_share(self) -> LoadResult | None:
        """End a share; the result of the load, if it was the last one."""
        with self._lock:
            self._open_shares -= 1
            if self._open_shares:
                return None
            return LoadResult(
                time.monotonic() - self._began,
                tuple(self._lost),
                bool(self.failed_blocks),
                tuple(self._unread),
                tuple(
                    PeerRead(
                        location,
                        peer.pages * self._page_tokens,
                        peer.ended - peer.began,
                        peer.failed,
                        tier,
                        peer.address,
                    )
                    for (location, tier), peer in self._peers.items()
                ),
            )

    def _peer(self, copy: PeerCopy, began: float) -> _PeerProgress:
        now = time.monotonic()
        address = copy.addresses[0] if copy.addresses else ""
        peer = self._peers.setdefault((copy.location, copy.tier), _PeerProgress(address, began, now))
        peer.began, peer.ended = min(peer.began, began), max(peer.ended, now)
        return peer
