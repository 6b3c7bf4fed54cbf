"""Loads from the tiers below the GPU into an engine's blocks, beside the engine's own steps."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from generator.connector.step_jobs import DonorPages, Load, LoadResult, Piece
from generator.connector.worker.blocks import PagedBlocks
from generator.connector.worker.kv_failures import warn
from generator.tiers.base import KvTier, Page
from protocol.kv import pages_spanned
from protocol.tiers import Tier

Ended = Callable[[Load, LoadResult, set[int]], None]
"""Takes a load that has ended, or a share of it, with the result and the failed blocks of the whole load."""

Staged = Callable[[str, dict[str, Page]], None]
"""Takes the pages of some of a request's donors, by key."""


@dataclass
class _Progress:
    """Progress of a load that several threads share."""

    open_shares: int
    began: float = math.inf
    lost: dict[tuple[str, Tier], None] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)


class BackgroundLoads:
    """Runs loads on ``threads`` threads, all of which share each load: one alone does not saturate the memory.

    Each load is reported to ``ended`` once, on one of these threads, when none of them touches its blocks any more. If
    it has donors, those that could be read go to ``staged`` before.
    """

    def __init__(
        self, blocks: PagedBlocks, tiers: dict[Tier, KvTier], threads: int, ended: Ended, staged: Staged
    ) -> None:
        self._blocks = blocks
        self._tiers = tiers
        self._threads = threads
        self._ended = ended
        self._staged = staged
        self._loaders = ThreadPoolExecutor(threads, "kv-load", initializer=blocks.enter_thread)
        # Guards the progress of loads.
        self._lock = threading.Lock()

    def start(self, load: Load) -> None:
        """Start a load."""
        shares = load.split(self._threads)
        progress = _Progress(len(shares))
        # Held blocks may have been computed by the step before, which may also still write to the blocks to be filled:
        # with asynchronous scheduling, it may compute one more token of the request that has just left them.
        fence = self._blocks.fence()
        for share in shares:
            self._loaders.submit(self._run, share, progress, fence)

    def close(self) -> None:
        """Finish what the threads have begun."""
        self._loaders.shutdown(wait=True, cancel_futures=True)

    def _run(self, share: Load, progress: _Progress, fence: Callable[[], None]) -> None:
        began = time.perf_counter()
        lost: list[tuple[str, Tier]] = []
        failed: set[int] = set()
        for piece in share.pieces:
            try:
                fence()
                self._fill(piece)
            except Exception as error:
                # Whatever the error is, the request goes on and computes what is missing.
                warn("kv_not_loaded", error, node=piece.key, tier=piece.tier)
                lost.append((piece.key, piece.tier))
                failed.update(piece.blocks)
        try:
            if share.copies:
                fence()
                try:
                    self._blocks.copy(share.copies)
                finally:
                    self._blocks.finish()
        except Exception as error:
            warn("kv_not_copied", error, request=share.request_id)
            failed.update(copy.target for copy in share.copies)
        if share.donors:
            self._staged(share.request_id, self._read(share.donors, fence, lost))
        with self._lock:
            progress.open_shares -= 1
            progress.began = min(progress.began, began)
            progress.lost.update(dict.fromkeys(lost))
            progress.failed |= failed
            ended = not progress.open_shares
        if ended:
            result = LoadResult(time.perf_counter() - progress.began, tuple(progress.lost), bool(progress.failed))
            self._ended(share, result, progress.failed)

    def _read(
        self, donors: Sequence[DonorPages], fence: Callable[[], None], lost: list[tuple[str, Tier]]
    ) -> dict[str, Page]:
        """The pages of donors, by key. Adds those that cannot be read to ``lost``."""
        found: dict[str, Page] = {}
        for donor in donors:
            span = pages_spanned(donor.prefix_tokens, donor.end - donor.start, self._blocks.page_tokens)
            try:
                pages = self._blocks.host_pages(len(span))
                if donor.tier is Tier.GPU:
                    fence()
                    try:
                        for index, block in enumerate(donor.blocks):
                            self._blocks.read(block, pages[index], self._blocks.page_tokens)
                    finally:
                        # After an error, too: the pages are free then.
                        self._blocks.finish()
                else:
                    with self._tiers[donor.tier].reading(donor.key, donor.pages) as reader:
                        for index in range(len(span)):
                            pages[index] = reader.page(index)
                found[donor.key] = pages
            except Exception as error:
                # Whatever the error is, the document is computed.
                warn("kv_not_loaded", error, node=donor.key, tier=donor.tier)
                lost.append((donor.key, donor.tier))
        return found

    def _fill(self, piece: Piece) -> None:
        with self._tiers[piece.tier].reading(piece.key, piece.pages) as reader:
            try:
                reader.load(piece.first, piece.blocks, self._blocks)
            finally:
                # The tier checks on exit that the copy has not changed, so the bytes must have arrived by then. After
                # an error, too: others may take the blocks as soon as the load has ended.
                self._blocks.finish()
