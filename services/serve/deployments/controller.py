"""The controller as a Ray Serve deployment: one replica, the single writer."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import structlog
from ray import serve

from cachectl.runtime.gc_tuning import collect_while_idle, spare_full_collections
from cachectl.runtime.live_controller import LiveController
from cachectl.runtime.snapshot_saver import SnapshotSaver
from cachectl.tree.snapshot import Snapshot
from protocol.cache import CachePath, DocumentDeletion, TreeView
from protocol.errors import DeployFailed, Unavailable
from protocol.kv import LostCopy
from protocol.plans import AdmissionRequest, CompletionReport, ControllerStats, PrefillPlan, SpeculationDecision
from services.config import Config
from services.redis.controller_state import controller_state
from services.serve.handles import GeneratorHandle

log = structlog.get_logger(__name__)

IDLE_CHECKS = 5
FOLLOW_S = 1.0


class ControllerDeployment:
    """Holds a ``Controller`` on the machine's monotonic clock, and keeps it true to the generator's instances."""

    async def __init__(self, config: Config, generator: str) -> None:  # type: ignore[misc]  # Serve awaits it
        config.observability.configure_logging()
        spare_full_collections()
        self._idle_checks = 0
        engines = GeneratorHandle.over(serve.get_deployment_handle(generator, app_name=generator))
        self._live = LiveController(
            config.controller, engines, config.cache_dir / "profiles", time.monotonic, time.time
        )
        self._open = AsyncExitStack()
        store = await self._open.enter_async_context(controller_state(config.redis))
        await _start(self._live, engines, await store.load())
        self._controller = self._live.controller
        self._snapshots = SnapshotSaver(self._controller.recovery, store, config.controller.state_interval_s)
        await self._open.enter_async_context(self._snapshots.saving())
        self._following = asyncio.create_task(self._follow())

    async def on_candidates(self, query_id: str, documents: Sequence[str], final: bool) -> SpeculationDecision:
        """Decide about provisional documents."""
        return await self._controller.on_candidates(query_id, documents, final)

    async def speculate(self, query_id: str, documents: Sequence[str], request: AdmissionRequest) -> PrefillPlan | None:
        """Lease a plan on provisional documents."""
        return await self._controller.speculate(query_id, documents, request)

    async def admit(self, request: AdmissionRequest) -> PrefillPlan:
        """Wait for the query's turn."""
        return await self._controller.admit(request)

    async def prefilled(self, query_id: str, lost: Sequence[LostCopy] = ()) -> None:
        """Hear of a plan's first token."""
        await self._controller.prefilled(query_id, lost)

    async def complete(self, report: CompletionReport) -> None:
        """Release a lease."""
        await self._controller.complete(report)

    async def warm(self, request: AdmissionRequest) -> PrefillPlan | None:
        """Lease a plan to an instance that has nothing else to do."""
        return await self._controller.warm(request)

    async def pin(self, path: CachePath, pinned: bool = True) -> None:
        """Keep a path, or no longer."""
        await self._controller.pin(path, pinned)
        await self._snapshots.save()

    async def delete_document(self, deletion: DocumentDeletion) -> int:
        """Drop documents from every tier."""
        return await self._controller.delete_document(deletion)

    async def clear(self) -> int:
        """Drop everything."""
        return await self._controller.clear()

    async def persist(self) -> None:
        """Have on disk what is kept anywhere."""
        await self._controller.persist()

    async def tree(self, depth: int, limit: int) -> TreeView:
        """The knowledge tree."""
        return await self._controller.tree(depth, limit)

    async def stats(self) -> ControllerStats:
        """Counters and gauges."""
        return await self._controller.stats()

    async def ready(self) -> None:
        """Return when queries can be admitted."""
        await self._controller.ready()

    async def check_health(self) -> None:
        """Serve's periodic call: the moment to take back what lost callers hold.

        A coroutine, for Serve runs plain functions in a thread, and the controller belongs to one event loop.
        """
        self._controller.expire_leases()
        # Five calls in a row, seconds apart, without anything to do: nobody will notice a pause.
        self._idle_checks = self._idle_checks + 1 if self._controller.idle else 0
        if self._idle_checks == IDLE_CHECKS:
            collect_while_idle()

    async def __del__(self) -> None:
        """Serve's call before it ends the replica."""
        self._following.cancel()
        await self._snapshots.save()
        await self._open.aclose()

    async def _follow(self) -> None:
        """Look every second which instances have come or gone: what a GPU held is gone with its instance."""
        while True:
            await asyncio.sleep(FOLLOW_S)
            try:
                await self._live.follow()
            except Exception:
                log.exception("the generator could not be followed")


async def _start(live: LiveController, engines: GeneratorHandle, snapshot: Snapshot) -> None:
    """Start over the first engine that runs, however long its model takes to load, and again if it goes meanwhile."""
    while True:
        try:
            await engines.ready()
            return await live.start(_log_progress, snapshot)
        except DeployFailed:
            raise
        except Unavailable:
            await asyncio.sleep(FOLLOW_S)


def _log_progress(done: int, total: int) -> None:
    log.info("profiling the engine, once", probe=done, of=total)
