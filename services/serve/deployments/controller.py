"""The controller as a Ray Serve deployment: one replica, the single writer of its knowledge tree."""

import asyncio
import time
from contextlib import AsyncExitStack

import structlog

from cachectl.runtime.composing import GateFolder
from cachectl.runtime.live_controller import LiveController, collect_while_idle, spare_full_collections
from cachectl.runtime.recovery import SnapshotSaver
from cachectl.sharding.controller_shard import ControllerShard
from cachectl.tree.snapshot import Snapshot
from protocol.cache import CachePath
from protocol.errors import DeployFailed, Unavailable
from protocol.parts import Controller
from services.config import Config
from services.redis.controller_state import controller_state
from services.serve.forwarding import serves
from services.serve.handles import GeneratorHandle, ServedInstances

log = structlog.get_logger(__name__)

IDLE_CHECKS = 5
"""Idle health checks in a row before a full garbage collection."""

FOLLOW_S = 1.0
"""Seconds between two looks at the generator's instances."""


@serves(Controller, "_controller")
class ControllerDeployment:
    """Runs a ``Controller`` on the machine's monotonic clock and keeps it in step with the generator's instances.

    With several shards, it is the one with this ``number``.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: Config, number: int, generator: str, kv_generator: str | None = None
    ) -> None:
        config.observability.configure_logging()
        spare_full_collections()
        self._idle_checks = 0
        shard = ControllerShard(number, config.controller.shards)
        engines = ServedInstances(*(GeneratorHandle.over(name) for name in (generator, kv_generator) if name))
        self._live = LiveController(
            config.controller,
            engines,
            config.cache_dir / "profiles",
            time.monotonic,
            time.time,
            GateFolder(config.cache_dir),
            shard,
            config.gateway.query_timeout_s,
        )
        self._open = AsyncExitStack()
        store = await self._open.enter_async_context(controller_state(config.redis, shard))
        await _start(self._live, engines, await store.load())
        self._controller = self._live.controller
        self._saver = SnapshotSaver(self._controller.recovery, store)
        await self._open.enter_async_context(self._saver.saving())
        self._following = asyncio.create_task(self._follow())

    async def pin(self, path: CachePath, pinned: bool = True) -> None:
        """Pin or unpin a path, and save the snapshot at once: a pin must survive a restart."""
        await self._controller.pin(path, pinned)
        await self._saver.save()

    async def check_health(self) -> None:
        """Serve's periodic health check. Also expires the leases of lost callers.

        It is a coroutine because Serve runs plain functions in a thread, and the controller belongs to one event loop.
        """
        self._controller.expire_leases()
        # Five idle checks in a row, one each second: a pause now delays no request.
        self._idle_checks = self._idle_checks + 1 if self._controller.idle else 0
        if self._idle_checks == IDLE_CHECKS:
            collect_while_idle()

    async def __del__(self) -> None:
        """Close everything. Serve calls this before it ends the replica."""
        self._following.cancel()
        await self._saver.save()
        await self._open.aclose()

    async def _follow(self) -> None:
        """Check every second which instances came or went. KV in an instance's GPU is lost with the instance."""
        while True:
            await asyncio.sleep(FOLLOW_S)
            try:
                await self._live.follow()
            except Exception:
                log.exception("the generator could not be followed")


async def _start(live: LiveController, engines: ServedInstances, snapshot: Snapshot) -> None:
    """Start with the first engine that runs, however long its model loads. Try again if the engine goes away."""
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
