"""The connector's worker side: moves pages between the engine's blocks and the tiers.

vLLM's worker-side calls end up here. Loads in the background, and everything that leaves the blocks, run in their own
threads.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from generator.connector.blocks.paged_blocks import PagedBlocks
from generator.connector.blocks.staged_pages import StagedRows
from generator.connector.step_jobs import JobResults, Load, LoadResult, StepJobs, Transfer
from generator.connector.worker.background_loads import BackgroundLoads
from generator.connector.worker.compositions import Compositions
from generator.connector.worker.peering import Peering
from generator.connector.worker.step_loads import StepLoads
from generator.connector.worker.tier_jobs import Movers, TierJobs, warn
from generator.tiers.arena import HostArena
from generator.tiers.base import KvTier
from protocol.kv import KvMemory
from protocol.tiers import Tier

_LOADER_THREADS = 2
_IDLE_WAIT_S = 0.005
_YIELD_S = 0.0002


class WorkerSide:
    """Carries out jobs over an engine's ``blocks`` and the ``tiers`` below the GPU, and collects their results.

    ``memory`` is reported with the first results. ``loader_threads`` threads share each load. ``peering`` connects the
    tiers with those of other locations, if it is configured. ``step_loads`` loads out of host memory, if there is any,
    within steps.
    """

    def __init__(
        self,
        blocks: PagedBlocks,
        tiers: dict[Tier, KvTier],
        memory: KvMemory,
        loader_threads: int = _LOADER_THREADS,
        peering: Peering | None = None,
    ) -> None:
        self._blocks = blocks
        self._tiers = tiers
        self._jobs = TierJobs(blocks, tiers)
        arena = tiers.get(Tier.HOST)
        self.step_loads = StepLoads(blocks, arena, memory.host_bytes_per_s) if isinstance(arena, HostArena) else None
        self._peering = peering
        self._loads = BackgroundLoads(blocks, tiers, loader_threads, self._load_ended, self._stage, peering)
        self._compositions: Compositions | None = None
        self._movers = Movers(blocks.enter_thread)
        # The condition guards the fields below, which the threads fill, and signals that they have changed.
        self._changed = threading.Condition()
        self._results = JobResults(memory=memory)
        self._loaded: set[str] = set()
        self._failed: set[int] = set()
        self._failed_requests: set[str] = set()
        # How many jobs have begun and not ended.
        self._running = 0

    def load(self, jobs: StepJobs) -> None:
        """Copy states, and start the loads in the background. Call it before the forward pass: they run beside it."""
        if jobs.states:
            self._blocks.copy(jobs.states)
        self._begin(len(jobs.loads))
        for load in jobs.loads:
            if load.composition is not None and self._compositions is not None:
                self._compositions.expect(load.request_id, load.composition)
            self._loads.start(load)

    def copy(self, jobs: StepJobs) -> None:
        """Make the copies that the step's forward pass needs."""
        if jobs.copies:
            self._blocks.copy(jobs.copies)
        if self.step_loads is not None:
            self.step_loads.load(jobs.step_loads)

    def compose_with(self, compositions: Compositions) -> None:
        """Compose with this from now on. Without it, no job may have donors."""
        self._compositions = compositions

    def compose(self, jobs: StepJobs) -> None:
        """Take the step's part of a composition. Call it after the step's forward pass."""
        if jobs.compose is None:
            return
        assert self._compositions is not None, "the engine's model is not known"
        ended = self._compositions.take(jobs.compose)
        if ended is not None:
            with self._changed:
                self._results.composed[ended.request_id] = ended.result
                self._failed |= ended.failed
                self._loaded.add(ended.request_id)

    def transfer(self, jobs: StepJobs) -> None:
        """Start the step's transfers, purges and inquiries. Call it after the step's forward pass."""
        if not (jobs.transfers or jobs.purges or jobs.inquiries):
            return
        self._begin(len(jobs.transfers) + len(jobs.purges) + len(jobs.inquiries))
        fence = self._blocks.fence()
        for transfer in jobs.transfers:
            pages = transfer.pages.numbers if transfer.pages is not None else ()
            uses_disk = Tier.DISK in (transfer.source, transfer.target)
            self._movers.submit(self._transferring(transfer, fence), (transfer.key, *pages), uses_disk)
        for purge in jobs.purges:
            if self._compositions is not None:
                # At once: each rank must have the same branches when it composes the next prompt.
                self._compositions.forget(purge)
            # After the transfers under way, so that the purge also deletes the copies that they make.
            work = partial(self._jobs.purge, purge)
            self._movers.submit_alone(self._job("purged", purge.number, work, 1, "documents_not_purged"))
        for name in jobs.inquiries:
            # After everything under way, so that the answer includes it.
            self._movers.submit_alone(self._job("held", name, self._jobs.held, {}, "tier_not_listed"))

    def pause(self, jobs: StepJobs) -> None:
        """Wait briefly for results in an idle step, so that the engine does not spin.

        If no job runs, the scheduler does not know that yet: with asynchronous scheduling, it has made this step before
        it received the last results. Then there is nothing to wait for.
        """
        with self._changed:
            results = self._results
            if jobs.idle and not (results.transfers or results.purged or results.held or self._loaded):
                self._changed.wait(_IDLE_WAIT_S if self._running else _YIELD_S)

    def take_loaded(self) -> set[str]:
        """Requests whose load has ended since the last call, successful or not."""
        with self._changed:
            loaded, self._loaded = self._loaded, set()
        return loaded

    def take_failed(self) -> set[int]:
        """Blocks that could not be loaded since the last call."""
        with self._changed:
            failed, self._failed = self._failed, set()
        return failed

    def take_failed_of(self, loaded: set[str]) -> set[str]:
        """Those of the requests in ``loaded`` that have to begin again, because blocks have failed.

        Where groups attend to windows, vLLM cannot go on in front of the first block that failed: the window is not
        there. So the whole load is of no use.
        """
        with self._changed:
            failed = self._failed_requests & loaded
            self._failed_requests -= failed
        return failed

    def take_results(self) -> JobResults | None:
        """The other results since the last call, or None if there are none."""
        with self._changed:
            results, self._results = self._results, JobResults()
        if self.step_loads is not None:
            results.step_load_s = self.step_loads.take_seconds()
        return results if results != JobResults() else None

    def close(self) -> None:
        """Finish what the threads have begun, and close the tiers."""
        if self._peering is not None:
            # First, so that no load waits for a peer, and no peer reads from a tier that is closed.
            self._peering.close()
        self._loads.close()
        if self.step_loads is not None:
            self.step_loads.close()
        self._movers.close()
        if self._compositions is not None:
            self._compositions.close()
        for tier in self._tiers.values():
            tier.close()

    def _begin(self, jobs: int) -> None:
        with self._changed:
            self._running += jobs

    # On the threads

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Record the end of a job; its results are added within the block."""
        with self._changed:
            yield
            self._running -= 1
            self._changed.notify_all()

    def _stage(self, request_id: str, rows: dict[int, StagedRows]) -> None:
        assert self._compositions is not None, "the engine's model is not known"
        self._compositions.stage(request_id, rows)

    def _load_ended(self, load: Load, result: LoadResult, failed: set[int]) -> None:
        with self._ending():
            self._results.loads[load.request_id] = result
            if load.composition is not None and self._compositions is not None:
                self._compositions.loaded(load.request_id, failed)
                return
            self._loaded.add(load.request_id)
            if self._blocks.paging.keeps_all:
                self._failed |= failed
            elif failed:
                self._failed_requests.add(load.request_id)

    def _job(
        self, kind: str, key: str | int, work: Callable[[], object], failed: object, event: str, **facts: object
    ) -> Callable[[], None]:
        """A job that ends with a result of a ``kind``: what ``work`` returns, or ``failed`` if it raises."""

        def run() -> None:
            result = failed
            try:
                result = work()
            except Exception as error:
                warn(event, error, **facts)
            finally:
                with self._ending():
                    getattr(self._results, kind)[key] = result

        return run

    def _transferring(self, transfer: Transfer, fence: Callable[[], None]) -> Callable[[], None]:
        def work() -> bool:
            fence()
            self._jobs.transfer(transfer)
            return True

        facts = {"node": transfer.key, "source": transfer.source, "target": transfer.target}
        return self._job("transfers", transfer.number, work, False, "kv_not_moved", **facts)
