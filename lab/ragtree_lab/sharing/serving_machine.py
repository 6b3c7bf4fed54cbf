"""A machine that serves its KV, whose processes can be stopped, killed and replaced."""

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from generator.engines.vllm_engine import VllmEngine
from generator.peers.wire import host_and_port
from generator.settings import PeerSettings
from protocol.errors import InternalError
from ragtree_lab.measuring.engines import ComparedEngines


class ServingMachine:
    """One engine at a time over the tiers below ``folder``, always at the same ``address``. Create it with ``running``.

    Each engine is another instance, with a ``name`` of its own: so does Ray Serve name its replicas. ``kv`` overrides
    ``KvSettings``. Another engine must have been started before, in this process: what multiprocessing starts once for
    all is then none of the machine's processes.
    """

    def __init__(self, engines: ComparedEngines, folder: Path, peers: PeerSettings, **kv: Any) -> None:  # noqa: ANN401
        self._engines = engines
        self._folder = folder
        self._peers = peers
        self._kv = kv
        self._life = AsyncExitStack()
        self._started: VllmEngine | None = None
        self._processes: list[psutil.Process] = []
        self._lives = 0
        self.address = ""

    @classmethod
    @asynccontextmanager
    async def running(
        cls,
        engines: ComparedEngines,
        folder: Path,
        peers: PeerSettings,
        **kv: Any,  # noqa: ANN401
    ) -> "AsyncGenerator[ServingMachine]":
        """Start a machine. On exit it ends, and its host memory is freed. Raises what the engine raises."""
        machine = cls(engines, folder, peers, **kv)
        try:
            await machine.start()
            yield machine
        finally:
            await machine._life.aclose()
            engines.kv_settings(disk_dir=folder, **kv).discard_host_memory()

    @property
    def name(self) -> str:
        """The name of the instance that runs now."""
        return f"peer-{self._lives}"

    @property
    def engine(self) -> VllmEngine:
        """The engine that runs now, or was killed last."""
        assert self._started is not None, "the machine was not started"
        return self._started

    async def start(self) -> None:
        """Start an engine in place of the last one, over what that left in memory. Raises what the engine raises."""
        await self._life.aclose()
        self._lives += 1
        before = set(psutil.Process().children())
        self._started = await self._life.enter_async_context(
            self._engines.caching(self._folder, instance=self.name, keep_host=True, peers=self._peers, **self._kv)
        )
        self._processes = [process for process in psutil.Process().children() if process not in before]
        memory = (await self._started.info()).kv
        if memory is None or not memory.peers.addresses:
            raise InternalError("the engine serves no KV, so there is nothing to measure")
        (self.address,) = memory.peers.addresses
        self._peers = self._peers.model_copy(update={"port": host_and_port(self.address)[1]})

    def kill(self) -> None:
        """End all processes of the engine at once, and wait until they are gone."""
        psutil.wait_procs(self._signal(signal.SIGKILL))

    def stop(self) -> None:
        """Let no process of the engine run until ``resume``. Its connections stay open."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let all processes run again."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> list[psutil.Process]:
        processes = list(self._processes)
        for process in self._processes:
            with suppress(psutil.NoSuchProcess):
                processes += process.children(recursive=True)
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
        return processes
