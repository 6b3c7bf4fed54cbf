"""What leaves an engine's blocks, moves between the tiers below the GPU, or is deleted from them, and its threads."""

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import structlog

from generator.connector.blocks.paged_blocks import PagedBlocks
from generator.connector.step_jobs import Purge, Transfer
from generator.tiers.base import KvTier, TierContents, TierError, TierUnavailable
from protocol.kv import KvNode
from protocol.tiers import Tier

log = structlog.get_logger(__name__)


def warn(event: str, error: Exception, **facts: object) -> None:
    """Log a failure. Errors of tiers take one line; anything else is a defect and is logged with its traceback."""
    expected = isinstance(error, (TierError, OSError))
    log.warning(event, error=f"{type(error).__name__}: {error}", exc_info=None if expected else error, **facts)


class Movers:
    """Runs jobs on two threads, so that copies to host memory do not wait for disk writes.

    Jobs of one thread run in the order given. A job also waits for earlier jobs of the other thread that touch the same
    things: a node, or pages of host memory. So a job may use the room that an earlier one frees. No job waits for a
    later one, so the threads cannot block each other for good. ``enter_thread`` runs first on each thread.
    """

    def __init__(self, enter_thread: Callable[[], None]) -> None:
        self._host = ThreadPoolExecutor(1, "kv-host", initializer=enter_thread)
        self._disk = ThreadPoolExecutor(1, "kv-disk", initializer=enter_thread)
        # The last job that touches a thing. Guarded, because the threads remove what they have finished.
        self._last: dict[Hashable, Future[None]] = {}
        self._open: set[Future[None]] = set()
        # Reentrant, because a job may end before its submission has returned.
        self._lock = threading.RLock()
        self._closed = False

    def submit(self, job: Callable[[], None], touches: Iterable[Hashable], uses_disk: bool) -> None:
        """Run a job after earlier ones that touch any of the same things."""
        things = tuple(touches)
        with self._lock:
            earlier = {self._last[thing] for thing in things if thing in self._last}
            self._start(job, earlier, things, self._disk if uses_disk else self._host)

    def submit_alone(self, job: Callable[[], None]) -> None:
        """Run a job after all earlier ones, and all later ones after it."""
        with self._lock:
            alone = self._start(job, set(self._open), (), self._disk)
            # It does nothing: only its place in the order counts.
            self._start(lambda: None, {alone}, (), self._host)

    def close(self) -> None:
        """Finish the jobs that have begun. The others are dropped."""
        self._closed = True
        for thread in (self._disk, self._host):
            thread.shutdown(wait=True)

    def _start(
        self,
        job: Callable[[], None],
        earlier: set["Future[None]"],
        things: tuple[Hashable, ...],
        thread: ThreadPoolExecutor,
    ) -> "Future[None]":
        def run() -> None:
            wait(earlier)
            if not self._closed:
                job()

        future = thread.submit(run)
        self._open.add(future)
        self._last.update(dict.fromkeys(things, future))
        future.add_done_callback(lambda done: self._forget(done, things))
        return future

    def _forget(self, done: "Future[None]", things: tuple[Hashable, ...]) -> None:
        with self._lock:
            self._open.discard(done)
            for thing in things:
                if self._last.get(thing) is done:
                    del self._last[thing]


class TierJobs:
    """Carries out transfers and purges over an engine's ``blocks`` and the ``tiers`` below the GPU.

    Every method raises what the tiers raise.
    """

    def __init__(self, blocks: PagedBlocks, tiers: dict[Tier, KvTier]) -> None:
        self._blocks = blocks
        self._tiers = tiers

    def transfer(self, transfer: Transfer) -> None:
        """Copy a node, delete it, or both. Raises TierError if the engine no longer holds what is to be copied."""
        source = self._tiers.get(transfer.source)
        if transfer.target is not None:
            target = self._tiers[transfer.target]
            if not target.has(transfer.key, transfer.pages):
                if source is not None:
                    self._copy(source, target, transfer)
                elif transfer.node is not None:
                    self._save(transfer.node, transfer.blocks, target, transfer)
                else:
                    raise TierError("the engine no longer holds the node")
        if source is not None and transfer.evict:
            source.drop(transfer.key, transfer.pages)

    def purge(self, purge: Purge) -> int:
        """Delete what the tiers themselves list, which includes nodes that the knowledge tree does not know.

        Returns the number of nodes that could not be deleted. Raises TierUnavailable if a tier does not list its nodes;
        the other ones are purged then.
        """
        left = 0
        silent: TierUnavailable | None = None
        for tier in [self._tiers[named] for named in purge.tiers if named in self._tiers]:
            try:
                held = tier.nodes()
            except TierUnavailable as error:
                silent = error
                continue
            covered = [stored for stored in held if purge.covers(stored.node.namespace, stored.node.path)]
            for node, pages in covered:
                tier.drop(node.key, pages)
            left += sum(tier.has(node.key, pages) for node, pages in covered)
        if silent is not None:
            raise silent
        return left

    def held(self) -> dict[Tier, TierContents]:
        """What the tiers hold, without those that do not answer."""
        contents = {}
        for tier, kept in self._tiers.items():
            try:
                contents[tier] = TierContents(tuple(kept.nodes()), kept.highest_stamp)
            except TierUnavailable as error:
                log.warning("a tier does not say what it holds", tier=tier.value, reason=str(error))
        return contents

    def _save(self, node: KvNode, blocks: Sequence[int], target: KvTier, transfer: Transfer) -> None:
        paging, end = self._blocks.paging, node.prefix_tokens + node.tokens
        pages = [
            (group, page * paging.group_tokens(group), paging.group_tokens(group))
            for group, span in enumerate(paging.spans(node.prefix_tokens, node.tokens))
            for page in span
        ]
        with target.writing(node, transfer.pages) as writer:
            try:
                for index, (block, (group, begin, size)) in enumerate(zip(blocks, pages, strict=True)):
                    self._blocks.read(block, writer.page(index), min(size, end - begin), group)
            finally:
                # The tier publishes the pages on exit, or frees them after an error, so no byte may still be under way.
                self._blocks.finish()

    def _copy(self, source: KvTier, target: KvTier, transfer: Transfer) -> None:
        with (
            source.reading(transfer.key, transfer.pages) as reader,
            target.writing(reader.node, transfer.pages) as writer,
        ):
            node = reader.node
            for index in range(self._blocks.paging.page_count(node.prefix_tokens, node.tokens)):
                writer.page(index)[:] = reader.page(index)
            # The pages in host memory may have been handed out again. The writer publishes on exit, so check before.
            reader.verify()
