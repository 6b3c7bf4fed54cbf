"""The one engine that a doctor runs at a time, because two may not fit the device."""

import gc
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

from examine.doctor.engine_log import EngineLog
from examine.measuring.engines import EngineMaker
from generator.engines.vllm_engine import VllmEngine
from protocol.errors import ConfigError, InternalError

_ELSEWHERE = "See root cause above"
"""What vLLM says if the reason is in the output of another process."""


class EngineSlot:
    """Starts and closes engines. Those with a cache keep KV on disk in ``folder``; ``kv`` overrides ``KvSettings``.

    All of them use the same host memory, which stays until its folder is removed.
    """

    def __init__(self, maker: EngineMaker, folder: Path, kv: Mapping[str, Any], log: EngineLog) -> None:
        self._maker = maker
        self.folder = folder
        self._kv = kv
        self._log = log
        self._exits = AsyncExitStack()
        self._engine: VllmEngine | None = None

    @property
    def running(self) -> VllmEngine:
        """The engine that runs."""
        if self._engine is None:
            raise InternalError("no engine is running")
        return self._engine

    async def start_plain(self) -> VllmEngine:
        """Close what runs, and start vLLM without the connector. Raises ConfigError with vLLM's reason."""
        return await self._start(self._maker.plain())

    async def start_caching(self) -> VllmEngine:
        """Close what runs, and start the stack's engine. Raises ConfigError with the reason."""
        return await self._start(self._maker.caching(self.folder, keep_host=True, **self._kv))

    async def close(self) -> None:
        """Close the engine, if one runs."""
        self._engine = None
        await self._exits.aclose()
        # vLLM's objects refer to each other, and complain if Python's end finds them.
        gc.collect()

    async def _start(self, engine: AbstractAsyncContextManager[VllmEngine]) -> VllmEngine:
        await self.close()
        before = self._log.size
        try:
            self._engine = await self._exits.enter_async_context(engine)
        except ConfigError as error:
            # vLLM starts in its own processes, whose errors reach this one only as text.
            reason = self._log.reason(before) if _ELSEWHERE in error.message else None
            raise ConfigError(reason or error.message, error.param) from error
        return self._engine
