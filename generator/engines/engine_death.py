"""What the death of an engine means for one of its requests."""

import asyncio
import signal
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

import structlog

from generator.connector.step_record import LastSteps
from protocol.errors import EngineDied, EngineFailed

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

log = structlog.get_logger(__name__)

_EXIT_S = 5.0
"""How long a process that has failed may take to end."""

_FROM_OUTSIDE = (0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
"""Exit codes of a process that somebody has ended. All others are its own failure."""


class EngineDeath:
    """Tells the requests of a dead engine apart, by its last ``steps``, or None if there is no record of them."""

    def __init__(self, llm: "AsyncLLM", steps: LastSteps | None) -> None:
        self._steps = steps
        self._processes = engine_processes(llm)

    async def error(self, name: str) -> EngineDied | EngineFailed:
        """What is raised for a request.

        EngineFailed if the engine failed by itself while it computed the request, which then may be the cause.
        EngineDied if it only waited, or if somebody has ended the engine.
        """
        if self._steps is None:
            return EngineDied("the engine's process is gone")
        if name not in self._steps.names():
            return EngineDied("the engine's process is gone", begun=False)
        if await self._ended_from_outside():
            return EngineDied("the engine's process was ended")
        log.error("engine_failed", query_id=name)
        return EngineFailed("The engine failed while it computed this request, which is not tried again.")

    async def _ended_from_outside(self) -> bool:
        # A process that takes longer is still at cleaning up, which nobody does who was killed.
        await asyncio.to_thread(wait, [process.sentinel for process in self._processes], _EXIT_S)
        return any(process.exitcode in _FROM_OUTSIDE for process in self._processes)


def engine_processes(llm: "AsyncLLM") -> list[Any]:
    """The engine's processes. vLLM has no public name for them; without any, a death is the engine's own."""
    manager = getattr(getattr(getattr(llm, "engine_core", None), "resources", None), "engine_manager", None)
    return list(getattr(manager, "processes", ()))
