"""The connector's worker side: moves pages between the engine's blocks and the tiers.

vLLM's worker-side calls end up here. Loads from host memory finish before the step that needs them. Loads from disk,
and everything that leaves the blocks, run in threads of their own.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import structlog

from generator.connector.blocks import PagedBlocks
from generator.connector.step_jobs import Load, LoadResult, Piece, Purge, StepJobs, StepResults, Transfer
from generator.tiers.base import KvTier, TierError
from protocol.kv import KvMemory, KvNode, ResidencyReport, pages_spanned
from protocol.tiers import Tier

log = structlog.get_logger(__name__)

_IDLE_WAIT_S = 0.005


@dataclass
class _SharedLoad:
    """Progress of a load that several threads share."""

    open_shares: int
    _began: float = math.inf
    _lost: dict[tuple[str, Tier], None] = field(default_factory=dict)

    def end_share(self, result: LoadResult) -> None:
        """Add the result of a share that has ended now."""
        self.open_shares -= 1
        self._began = min(self._began, time.perf_counter() - result.seconds)
        self._lost.update(dict.fromkeys(result.lost))

    def result(self) -> LoadResult:
        """The result of all shares, timed from the beginning of the first one until now."""
        return LoadResult(time.perf_counter() - self._began, tuple(self._lost))


class WorkerSide:
    """Carries out jobs over an engine's ``blocks`` and the ``tiers`` below the GPU.

    Transfers run one after the other in the order given, so one may use the room that an earlier one frees. ``memory``
    is reported with the first results. ``loader_threads`` threads share each load from disk.
    """

    def __init__(self, blocks: PagedBlocks, tiers: dict[Tier, KvTier], memory: KvMemory, loader_threads: int) -> None:
        self._blocks = blocks
        self._tiers = tiers
        self._loader_threads = loader_threads
        self._loaders = ThreadPoolExecutor(loader_threads, thread_name_prefix="kv-load")
        self._mover = ThreadPoolExecutor(1, thread_name_prefix="kv-move")
        # The condition guards the fields below, which the threads fill too, and signals that they have changed.
        self._changed = threading.Condition()
        self._results = StepResults(memory=memory)
        self._loaded: set[str] = set()
        self._failed: set[int] = set()

    def load(self, jobs: StepJobs) -> None:
        """Load everything that the step's forward pass needs, and start the background loads."""
        for load in jobs.loads:
            if load.background:
                # Copies out of other blocks are made now, because those blocks may be reused later.
                near = tuple(piece for piece in load.pieces if piece.tier is Tier.GPU)
                far = tuple(piece for piece in load.pieces if piece.tier is not Tier.GPU)
                _, failed = self._load(replace(load, pieces=near))
                with self._changed:
                    self._failed |= failed
                self._load_in_background(replace(load, pieces=far))
            else:
                result, failed = self._load(load)
                with self._changed:
                    self._results.loads[load.request_id] = result
                    self._failed |= failed

    def transfer(self, jobs: StepJobs) -> None:
        """Start the step's transfers, purges and inquiries. Call it after the step's forward pass."""
        fence = self._blocks.fence()
        for transfer in jobs.transfers:
            self._mover.submit(self._transfer, transfer, fence)
        for purge in jobs.purges:
            # Behind the transfers under way, so that the purge also deletes the copies that they make.
            self._mover.submit(self._purge, purge)
        for name in jobs.inquiries:
            # Behind everything under way, so that the answer includes it.
            self._mover.submit(self._answer, name)

    def pause(self, jobs: StepJobs) -> None:
        """Wait briefly for results in an idle step, so that the engine does not spin."""
        with self._changed:
            results = self._results
            if jobs.idle and not (results.transfers or results.purged or results.held or self._loaded):
                self._changed.wait(_IDLE_WAIT_S)

    def take_loaded(self) -> set[str]:
        """Requests whose background load has ended since the last call, successful or not."""
        with self._changed:
            loaded, self._loaded = self._loaded, set()
        return loaded

    def take_failed(self) -> set[int]:
        """Blocks that could not be loaded since the last call."""
        with self._changed:
            failed, self._failed = self._failed, set()
        return failed

    def take_results(self) -> StepResults | None:
        """The other results since the last call, or None if there are none."""
        with self._changed:
            results, self._results = self._results, StepResults()
        return results if results != StepResults() else None

    def close(self) -> None:
        """Finish what is under way, and close the tiers."""
        self._loaders.shutdown(wait=True, cancel_futures=True)
        self._mover.shutdown(wait=True, cancel_futures=True)
        for tier in self._tiers.values():
            tier.close()

    # Loads

    def _load_in_background(self, load: Load) -> None:
        """Start a load and split it among the threads: one thread alone does not saturate the memory."""
        shares = load.split(self._loader_threads)
        under_way = _SharedLoad(len(shares))
        for share in shares:
            self._loaders.submit(self._load_share, share, under_way)

    def _load_share(self, share: Load, under_way: _SharedLoad) -> None:
        result, failed = self._load(share)
        with self._changed:
            self._failed |= failed
            under_way.end_share(result)
            if not under_way.open_shares:
                self._results.loads[share.request_id] = under_way.result()
                self._loaded.add(share.request_id)
                self._changed.notify_all()

    def _load(self, load: Load) -> tuple[LoadResult, set[int]]:
        """Load, and return the result and the blocks that failed."""
        began = time.perf_counter()
        lost: list[tuple[str, Tier]] = []
        failed: set[int] = set()
        for piece in load.pieces:
            try:
                self._fill(piece)
            except Exception as error:
                # Whatever the error is, the request goes on and computes what is missing.
                _warn("kv_not_loaded", error, node=piece.key, tier=piece.tier)
                lost.append((piece.key, piece.tier))
                failed.update(piece.blocks)
        try:
            self._blocks.finish()
        except Exception as error:
            _warn("kv_not_loaded", error, request=load.request_id)
            failed.update(block for piece in load.pieces for block in piece.blocks)
        return LoadResult(time.perf_counter() - began, tuple(lost)), failed

    def _fill(self, piece: Piece) -> None:
        if piece.tier is Tier.GPU:
            for held, block in zip(piece.held, piece.blocks, strict=True):
                self._blocks.copy(held, block)
            return
        with self._tiers[piece.tier].reading(piece.key, piece.pages) as reader:
            reader.load(piece.first, piece.blocks, self._blocks)

    # Transfers

    def _transfer(self, transfer: Transfer, fence: Callable[[], None]) -> None:
        done = False
        try:
            fence()
            self._carry_out(transfer)
            done = True
        except Exception as error:
            _warn("kv_not_moved", error, node=transfer.key, source=transfer.source, target=transfer.target)
        finally:
            with self._changed:
                self._results.transfers[transfer.number] = done
                self._changed.notify_all()

    def _purge(self, purge: Purge) -> None:
        """Delete what the tiers themselves list, which includes nodes that the knowledge tree does not know."""
        left = 0
        try:
            for tier in self._tiers.values():
                covered = [stored for stored in tier.nodes() if purge.covers(stored.node.namespace, stored.node.path)]
                for node, pages in covered:
                    tier.drop(node.key, pages)
                left += sum(tier.has(node.key, pages) for node, pages in covered)
        except Exception as error:
            _warn("documents_not_purged", error)
            left += 1
        finally:
            with self._changed:
                self._results.purged[purge.number] = left
                self._changed.notify_all()

    def _answer(self, name: str) -> None:
        """Answer an inquiry."""
        reports: list[ResidencyReport] = []
        try:
            for tier, kept in self._tiers.items():
                reports.append(ResidencyReport(tier, tuple(stored.held for stored in kept.nodes())))
        except Exception as error:
            _warn("tier_not_listed", error)
        finally:
            with self._changed:
                self._results.held[name] = tuple(reports)
                self._changed.notify_all()

    def _carry_out(self, transfer: Transfer) -> None:
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

    def _save(self, node: KvNode, blocks: Sequence[int], target: KvTier, transfer: Transfer) -> None:
        page_tokens = self._blocks.page_tokens
        end = node.prefix_tokens + node.tokens
        first = node.prefix_tokens // page_tokens
        with target.writing(node, transfer.pages) as writer:
            for index, block in enumerate(blocks):
                self._blocks.read(block, writer.page(index), min(page_tokens, end - (first + index) * page_tokens))

    def _copy(self, source: KvTier, target: KvTier, transfer: Transfer) -> None:
        with (
            source.reading(transfer.key, transfer.pages) as reader,
            target.writing(reader.node, transfer.pages) as writer,
        ):
            node = reader.node
            for index in range(len(pages_spanned(node.prefix_tokens, node.tokens, self._blocks.page_tokens))):
                writer.page(index)[:] = reader.page(index)


def _warn(event: str, error: Exception, **facts: object) -> None:
    """Log a failure. Errors of tiers take one line; anything else is a defect and is logged with its traceback."""
    expected = isinstance(error, (TierError, OSError))
    log.warning(event, error=f"{type(error).__name__}: {error}", exc_info=None if expected else error, **facts)
