"""What the connector reports, on its way from the engine's process to whoever waits for it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from vllm.v1.metrics.loggers import StatLoggerBase

from generator.connector.messages import EngineReport, Resolved
from protocol.errors import EngineDied, Unavailable
from protocol.kv import KvMemory, LostCopy, ResidencyReport

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.metrics.stats import IterationStats, SchedulerStats


class EngineReports:
    """Reports as they come in, and futures for those who ask for one by name. Belongs to one event loop."""

    def __init__(self) -> None:
        self._resolved: dict[str, asyncio.Future[Resolved]] = {}
        self._carried_out: dict[str, asyncio.Future[tuple[LostCopy, ...]]] = {}
        self._held: dict[str, asyncio.Future[tuple[ResidencyReport, ...]]] = {}
        self._memory: asyncio.Future[KvMemory] | None = None
        self._lost: list[LostCopy] = []

    def logger(self, vllm_config: "VllmConfig", engine_index: int = 0) -> "ReportLogger":
        """What vLLM asks for: something that is told of every step's stats."""
        return ReportLogger(vllm_config, engine_index, self)

    def memory(self) -> "asyncio.Future[KvMemory]":
        """The engine's memory, which it tells with its first step."""
        if self._memory is None:
            self._memory = asyncio.get_running_loop().create_future()
        return self._memory

    @contextmanager
    def resolving(self, name: str) -> "Iterator[asyncio.Future[Resolved]]":
        """What the prefill of a request comes to: it is there about when the request's first token is."""
        future: asyncio.Future[Resolved] = asyncio.get_running_loop().create_future()
        self._resolved[name] = future
        try:
            yield future
        finally:
            del self._resolved[name]

    def carried_out(self, name: str) -> "asyncio.Future[tuple[LostCopy, ...]]":
        """The end of orders that were given under this name outside of any plan."""
        return self._carried_out.setdefault(name, asyncio.get_running_loop().create_future())

    def held(self, name: str) -> "asyncio.Future[tuple[ResidencyReport, ...]]":
        """The answer to an inquiry."""
        return self._held.setdefault(name, asyncio.get_running_loop().create_future())

    def take_lost(self) -> tuple[LostCopy, ...]:
        """Copies that were found to be lost since the last call."""
        lost, self._lost = tuple(self._lost), []
        return lost

    def receive(self, report: EngineReport) -> None:
        """Hand a report out."""
        for name, resolved in report.resolved.items():
            _settle(self._resolved.get(name), resolved)
        self._lost += report.lost
        for name in report.refused:
            refused = self._carried_out.pop(name, None)
            if refused is not None and not refused.done():
                refused.set_exception(Unavailable("KV of a document could not be deleted; the log says why"))
        for name, lost in report.carried_out.items():
            _settle(self._carried_out.pop(name, None), lost)
        for name, held in report.held.items():
            _settle(self._held.pop(name, None), held)
        if report.memory is not None:
            _settle(self.memory(), report.memory)

    def fail(self) -> None:
        """The engine is gone: nobody will be answered any more."""
        waiting: list[asyncio.Future[Any]] = [*self._carried_out.values(), *self._held.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(EngineDied("the engine's process is gone"))
        self._carried_out.clear()
        self._held.clear()


class ReportLogger(StatLoggerBase):  # type: ignore[misc]  # vLLM is untyped here
    """Takes the connector's reports out of vLLM's stats."""

    def __init__(self, vllm_config: "VllmConfig", engine_index: int, reports: EngineReports) -> None:  # noqa: ARG002
        self._reports = reports

    def record(
        self,
        scheduler_stats: "SchedulerStats | None",
        iteration_stats: "IterationStats | None",  # noqa: ARG002
        *args: Any,  # noqa: ANN401, ARG002
        **kwargs: Any,  # noqa: ANN401, ARG002
    ) -> None:
        """Take one step's."""
        stats = scheduler_stats.kv_connector_stats if scheduler_stats is not None else None
        if stats and "report" in stats:
            self._reports.receive(msgspec.convert(stats["report"], EngineReport))

    def log_engine_initialized(self) -> None:
        """Nothing to say."""


def _settle(future: "asyncio.Future[Any] | None", result: object) -> None:
    if future is not None and not future.done():
        future.set_result(result)
