"""Loads from the tiers below the GPU into an engine's blocks, beside the engine's own steps."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import accumulate

from generator.connector.blocks.paged_blocks import PagedBlocks
from generator.connector.blocks.staged_pages import StagedRows
from generator.connector.step_jobs import DonorPages, Load, LoadResult, Piece
from generator.connector.worker.peering import Peering
from generator.connector.worker.tier_jobs import warn
from generator.peers.page_client import RemoteReader
from generator.peers.wire import PeerUnreachable, Reason
from generator.tiers.base import KvBroken, KvMissing, KvTier, PageReader, PageTarget, TierUnavailable
from protocol.kv import KvRead, LostCopy, PeerCopy
from protocol.tiers import Tier

Ended = Callable[[Load, LoadResult, set[int]], None]
"""Takes a load that has ended, or a share of it, with the result and the failed blocks of the whole load."""

_NETWORK_THREADS = 16
"""Loads wait for peers, and for an object store, on their own threads: no load from this machine waits for them."""
_STORED_SHARE_BYTES = 8 << 20
_READING = 0.8
"""The share of the time limit in which peers are read. In the rest, the engine schedules what they did not send."""

Staged = Callable[[str, dict[int, StagedRows]], None]
"""Takes the pages of some of a request's donors, by the positions that their documents start at."""


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

    @contextmanager
    def reading(self, read: Piece | DonorPages, pages: int, blocks: Sequence[int] = ()) -> Iterator[None]:
        """Read a copy's ``pages`` within the block. If it raises, they and the ``blocks`` that they fill are missed.

        After any error, the request goes on and computes what is missing. Pages of this location are not counted.
        """
        began = time.monotonic()
        try:
            yield
        except Exception as error:
            facts = {"location": read.copy.location} if read.copy.location else {}
            warn("kv_not_loaded", error, node=read.copy.node, tier=read.copy.tier, **facts)
            self.missed(read, error, began, blocks)
            return
        if read.source.peer is not None:
            with self._lock:
                self._peer(read.source.peer, began).pages += pages

    def missed(self, read: Piece | DonorPages, error: Exception, began: float, blocks: Sequence[int] = ()) -> None:
        """Record that a copy could not be read since ``began``, and the ``blocks`` that it was to fill.

        It is lost if its location does not have it. That is not known if a peer, or an object store, did not serve it.
        """
        known = (KvMissing, KvBroken) if read.source.peer is not None else Exception
        with self._lock:
            self.failed_blocks.update(blocks)
            if isinstance(error, known) and not isinstance(error, TierUnavailable):
                self._lost[read.copy] = None
                return
            self._unread[read.copy] = None
            if read.source.peer is not None and isinstance(error, PeerUnreachable) and began <= self._fair_until:
                self._peer(read.source.peer, began).failed = True

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
                    KvRead(
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


class BackgroundLoads:
    """Runs loads on ``threads`` threads, all of which share each load: one alone does not saturate the memory.

    Each load is reported to ``ended`` once, on one of these threads, when none touches its blocks any more. If
    it has donors, those that could be read go to ``staged`` before. Without ``peering``, nothing is read at other
    locations. Reads there, or from an object store, have their own threads.
    """

    def __init__(
        self,
        blocks: PagedBlocks,
        tiers: dict[Tier, KvTier],
        threads: int,
        ended: Ended,
        staged: Staged,
        peering: Peering | None = None,
    ) -> None:
        self._blocks = blocks
        self._tiers = tiers
        self._peering = peering
        self._threads = threads
        self._ended = ended
        self._staged = staged
        self._loaders = ThreadPoolExecutor(threads, "kv-load", initializer=blocks.enter_thread)
        self._peer_loaders = ThreadPoolExecutor(_NETWORK_THREADS, "kv-peer", initializer=blocks.enter_thread)
        self._store_loaders = ThreadPoolExecutor(_NETWORK_THREADS, "kv-store", initializer=blocks.enter_thread)
        self._stores = {kind for kind, tier in tiers.items() if tier.on_network}

    def start(self, load: Load) -> None:
        """Start a load."""
        near, far = load.near_and_far()
        stored = near.only(lambda read: read.copy.tier in self._stores)
        near = near.only(lambda read: read.copy.tier not in self._stores, near.copies)
        away = [share for part in far for share in part.split(self._threads)]
        asked = self._split_stored(stored) if stored.pieces or stored.donors else []
        here = near.split(self._threads) if near.pieces or near.donors or near.copies or not away + asked else []
        timeout_s = self._peering.timeout_s if self._peering is not None else 0.0
        deadline = time.monotonic() + _READING * timeout_s
        progress = LoadProgress(
            len(here) + len(away) + len(asked), self._blocks.paging.page_tokens, deadline - timeout_s / 2
        )
        rows = self._rows_for(load.donors)
        # Held blocks may have been computed by the step before, which may also still write to the blocks to be filled:
        # with asynchronous scheduling, it may compute one more token of the request that has just left them.
        fence = self._blocks.fence()
        for loaders, shares in (
            (self._peer_loaders, away),
            (self._store_loaders, asked),
            (self._loaders, here),
        ):
            for share in shares:
                loaders.submit(self._run, share, rows, progress, fence, deadline)

    def close(self) -> None:
        """Finish what the threads have begun."""
        for loaders in (self._loaders, self._peer_loaders, self._store_loaders):
            loaders.shutdown(wait=True, cancel_futures=True)

    def _split_stored(self, stored: Load) -> list[Load]:
        """About one load a node, and more if nodes are large: each load asks for the headers of its nodes."""
        size = sum(len(piece.blocks) for piece in stored.pieces) * self._blocks.page_bytes
        count = max(len(stored.pieces), len(stored.donors), size // _STORED_SHARE_BYTES)
        return stored.split(min(count, _NETWORK_THREADS))

    def _rows_for(self, donors: Sequence[DonorPages]) -> dict[int, StagedRows]:
        """Memory for the pages of all donors, side by side."""
        if not donors:
            return {}
        paging = self._blocks.paging
        counts = [paging.page_count(donor.source.prefix_tokens, donor.end - donor.start) for donor in donors]
        staged = self._blocks.stage(sum(counts))
        return {
            donor.start: StagedRows(staged, range(end - count, end))
            for donor, count, end in zip(donors, counts, accumulate(counts), strict=True)
        }

    def _run(
        self,
        share: Load,
        rows: dict[int, StagedRows],
        progress: LoadProgress,
        fence: Callable[[], None],
        deadline: float,
    ) -> None:
        for piece in share.pieces:
            with progress.reading(piece, len(piece.blocks), piece.blocks):
                fence()
                self._fill(piece, piece.first, piece.blocks, self._blocks, deadline)
        try:
            if share.copies:
                fence()
                try:
                    self._blocks.copy(share.copies)
                finally:
                    self._blocks.finish()
        except Exception as error:
            warn("kv_not_copied", error, request=share.request_id)
            progress.failed([copy.target for copy in share.copies])
        if share.donors:
            self._staged(share.request_id, self._read(share.donors, rows, progress, fence, deadline))
        result = progress.end_share()
        if result is not None:
            self._ended(share, result, progress.failed_blocks)

    def _read(
        self,
        donors: Sequence[DonorPages],
        rows: dict[int, StagedRows],
        progress: LoadProgress,
        fence: Callable[[], None],
        deadline: float,
    ) -> dict[int, StagedRows]:
        """The rows of those donors that can be read."""
        found: dict[int, StagedRows] = {}
        for donor in donors:
            with progress.reading(donor, len(rows[donor.start].numbers)):
                # The memory may be that of an earlier composition, whose last steps still read it.
                fence()
                self._stage(donor, rows[donor.start], deadline)
                found[donor.start] = rows[donor.start]
        return found

    def _stage(self, donor: DonorPages, rows: StagedRows, deadline: float) -> None:
        if not donor.blocks:
            self._fill(donor, 0, rows.numbers, rows.staged, deadline)
            return
        try:
            rows.staged.take(donor.blocks, rows.numbers.start)
        finally:
            # After an error, too: the blocks are free then.
            self._blocks.finish()

    def _fill(
        self, read: Piece | DonorPages, first: int, blocks: Sequence[int], target: PageTarget, deadline: float
    ) -> None:
        """Load the copy's pages from ``first`` on into blocks of the target."""
        with self._reading(read, deadline) as reader:
            try:
                reader.load(first, blocks, target)
            finally:
                # The tier checks on exit that the copy has not changed, so the bytes must have arrived by then. After
                # an error, too: others may take the blocks as soon as the load has ended.
                self._blocks.finish()

    def _reading(
        self, read: Piece | DonorPages, deadline: float
    ) -> AbstractContextManager[PageReader] | AbstractContextManager[RemoteReader]:
        named = read.source
        if named.peer is None:
            return self._tiers[read.copy.tier].reading(named.key, named.pages)
        if self._peering is None:
            raise PeerUnreachable(Reason.DENIED, "this engine reads from no peers: it was given no key for them")
        return self._peering.reading(named.peer, named.key, deadline)
