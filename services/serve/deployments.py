"""The Ray Serve deployments. Each is a thin wrapper around one part's plain class."""

import asyncio
import os
import time
from collections.abc import Collection
from contextlib import AsyncExitStack, aclosing

import structlog
from ray import serve
from ray.util import get_node_ip_address

from cachectl.runtime.composing import GateFolder
from cachectl.runtime.live_controller import LiveController, collect_while_idle, spare_full_collections
from cachectl.runtime.recovery import SnapshotSaver
from cachectl.sharding.controller_shard import ControllerShard
from cachectl.tree.snapshot import Snapshot
from generator.engines.engine import Engine
from protocol.cache import CachePath
from protocol.errors import DeployFailed, EngineDied, Unavailable
from protocol.generation import PrefillCost, Sampling
from protocol.parts import Controller, Generator
from protocol.plans import PrefillPlan
from protocol.timing import StreamClock, StreamTiming
from retriever.build import build_retriever
from retriever.machine import return_large_blocks
from retriever.sharding.shard_group import Shard
from services.calls.method import methods_of
from services.calls.server import CallServer
from services.calls.wire import Address
from services.cluster.machine import on_this_machine
from services.config import Config
from services.model import generator_factory
from services.observability.spans import open_spans
from services.redis.controller_state import controller_state
from services.serve.forwarding import serves
from services.serve.handles import GeneratorHandle, ServedInstances

log = structlog.get_logger(__name__)

DRAIN_S = 10.0
"""Seconds that a stopping replica may take to finish its calls and to close its part."""

STREAMS_DRAIN_S = 300.0
"""The same for a part whose calls are streams of answers."""

_FOR_CALLS = 0.8
"""The share of it that calls may take. Ray Serve kills a replica that is not closed by then."""


@serves(Shard, "_retriever")
class RetrieverDeployment:
    """Runs a retriever, or one shard of it, and its ingest worker: one replica, which owns its data folder."""

    async def __init__(self, config: Config, shard: int) -> None:  # type: ignore[misc]  # Serve awaits it
        return_large_blocks()
        config.observability.configure_logging()
        self._calls = _call_server(Shard)
        self._spans = open_spans(config.observability, "retriever")
        folder = config.shard_folders.of(shard)
        self._retriever = build_retriever(config.retriever, folder, tracer=self._spans.tracer)
        await self._retriever.start()
        await self._calls.listen(self._retriever, get_node_ip_address())

    async def address(self) -> Address:
        """Where queries' calls are served."""
        return self._calls.address

    async def __del__(self) -> None:
        """Close the retriever and send the last spans. Serve calls this before it ends the replica."""
        await self._calls.close(_FOR_CALLS * DRAIN_S)
        await self._retriever.close()
        await asyncio.to_thread(self._spans.close)


@serves(Generator, "_addressed")
class GeneratorDeployment:
    """Runs an engine. If the engine dies, the health check fails and Serve replaces the replica."""

    async def __init__(self, config: Config) -> None:  # type: ignore[misc]  # Serve awaits it
        config.observability.configure_logging()
        # Ray Serve counts the streams of an application whose number of replicas follows them.
        self._calls = _call_server(Generator, but={"stream"} if config.serving.generator.scales else ())
        # Ray gives a replica that reserves no CPUs one thread. The engine would take that for its user's choice.
        os.environ.pop("OMP_NUM_THREADS", None)
        self._instance: str = serve.get_replica_context().replica_id.unique_id
        self._engine = generator_factory(on_this_machine(config), get_node_ip_address()).engine(self._instance)
        await self._engine.start()
        await self._calls.listen(self._engine, get_node_ip_address())

    async def address(self) -> Address:
        """Where queries' calls are served. Raises EngineDied if the current call names another instance."""
        await self._addressed.ready()
        return self._calls.address

    async def ready(self) -> None:
        """Return when plans can be executed."""
        await self._engine.ready()

    async def probe_prefill(self, cached_tokens: int, new_tokens: int) -> PrefillCost:
        """Measure one prefill."""
        return await self._engine.probe_prefill(cached_tokens, new_tokens)

    async def time_stream(self, plan: PrefillPlan, max_tokens: int) -> StreamTiming:
        """Time a plan's stream next to the engine: the baseline of the stack's overhead."""
        texts = StreamClock()
        async with aclosing(self._engine.stream(plan, Sampling(max_tokens=max_tokens))) as steps:
            async for step in steps:
                if step.text or (step.finish_reason is not None and not texts.started):
                    texts.arrived()
        return texts.timing()

    async def check_health(self) -> None:
        """Serve's periodic health check. Raises if the engine is gone."""
        await self._engine.ready()

    async def __del__(self) -> None:
        """Close the engine. Serve calls this before it ends the replica."""
        await self._calls.close(_FOR_CALLS * STREAMS_DRAIN_S)
        await self._engine.close()

    @property
    def _addressed(self) -> Engine:
        """The engine, if the current call names this instance or none.

        Raises EngineDied if it names another: that instance drains or is gone, so Serve routed the call here.
        """
        named = serve.get_multiplexed_model_id()
        if named and named != self._instance:
            raise EngineDied("the instance that this call names is draining or gone", begun=False)
        return self._engine


IDLE_CHECKS = 5
"""Idle health checks in a row before a full garbage collection."""

FOLLOW_S = 1.0
"""Seconds between two looks at the generator's instances."""


@serves(Controller, "_controller")
class ControllerDeployment:
    """Runs a ``Controller`` on the machine's monotonic clock and keeps it in step with the generator's instances.

    It has one replica, the single writer of its knowledge tree. With several shards, it is the one with this
    ``number``.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: Config, number: int, generator: str, kv_generator: str | None = None
    ) -> None:
        config.observability.configure_logging()
        self._calls = _call_server(Controller)
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
        await self._calls.listen(self._controller, get_node_ip_address())

    async def address(self) -> Address:
        """Where queries' calls are served."""
        return self._calls.address

    async def pin(self, path: CachePath, pinned: bool = True) -> None:
        """Pin or unpin a path, and save the snapshot at once: a pin must survive a restart."""
        await self._controller.pin(path, pinned)
        await self._saver.save()

    async def load_adapter(self, name: str, source: str) -> str:
        """Have all instances serve an adapter, and save that, as with pins."""
        digest = await self._controller.load_adapter(name, source)
        await self._saver.save()
        return digest

    async def unload_adapter(self, name: str) -> None:
        """Have all instances serve an adapter no more, and save that."""
        await self._controller.unload_adapter(name)
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
        await self._calls.close(_FOR_CALLS * DRAIN_S)
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


def _call_server(contract: type, but: Collection[str] = ()) -> CallServer:
    """A server of queries' calls to a part, ``but`` those of some names."""
    return CallServer([method for name, method in methods_of(contract).items() if name not in but])


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
