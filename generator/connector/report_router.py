"""Routes the connector's reports from the engine's process to the coroutines that wait for them."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from vllm.v1.metrics.loggers import StatLoggerBase

from generator.connector.messages import EngineReport, Prefilled
from protocol.errors import EngineDied, Unavailable
from protocol.kv import KvMemory, LostCopy, ResidencyReport

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.metrics.stats import IterationStats, SchedulerStats

T = TypeVar("T")


class ReportRouter:
    """Resolves futures with reports, by request name. Use it on one event loop."""

    def __init__(self) -> None:
        self._prefilled: dict[str, asyncio.Future[Prefilled]] = {}
        self._written: dict[str, asyncio.Future[tuple[LostCopy, ...]]] = {}
        self._carried_out: dict[str, asyncio.Future[tuple[LostCopy, ...]]] = {}
        self._held: dict[str, asyncio.Future[tuple[ResidencyReport, ...]]] = {}
        self._memory: asyncio.Future[KvMemory] | None = None
        self._lost: list[LostCopy] = []

    def logger(self, vllm_config: "VllmConfig", engine_index: int = 0) -> "ReportLogger":
        """The stat logger to register with vLLM, which passes it the stats of every step."""
        return ReportLogger(vllm_config, engine_index, self)

    def memory(self) -> "asyncio.Future[KvMemory]":
        """The engine's memory, reported with its first step."""
        if self._memory is None:
            self._memory = asyncio.get_running_loop().create_future()
        return self._memory

    def prefilled(self, name: str) -> "AbstractContextManager[asyncio.Future[Prefilled]]":
        """The prefill of a request, reported at about the time of its first token, if that is within the block."""
        return _expected(self._prefilled, name)

    def written(self, name: str) -> "AbstractContextManager[asyncio.Future[tuple[LostCopy, ...]]]":
        """The copies below the GPU that a plan was to write and could not, once it writes no more.

        Nothing is reported of a plan that writes none.
        """
        return _expected(self._written, name)

    def carried_out(self, name: str) -> "asyncio.Future[tuple[LostCopy, ...]]":
        """The end of the orders outside of plans with this name, and the copies they should have made and did not.

        Raises Unavailable if documents could not be deleted, EngineDied if the engine is gone.
        """
        return self._carried_out.setdefault(name, asyncio.get_running_loop().create_future())

    def held(self, name: str) -> "asyncio.Future[tuple[ResidencyReport, ...]]":
        """The answer to an inquiry. Raises EngineDied if the engine is gone."""
        return self._held.setdefault(name, asyncio.get_running_loop().create_future())

    def take_lost(self) -> tuple[LostCopy, ...]:
        """The copies reported as lost since the last call."""
        lost, self._lost = tuple(self._lost), []
        return lost

    def receive(self, report: EngineReport) -> None:
        """Hand a report to those who wait for it."""
        for name, prefilled in report.prefilled.items():
            _set_result(self._prefilled.get(name), prefilled)
        self._lost += report.lost
        for name in report.refused:
            refused = self._carried_out.pop(name, None)
            if refused is not None and not refused.done():
                refused.set_exception(Unavailable("KV of a document could not be deleted; the log says why"))
        for name, lost in report.carried_out.items():
            _set_result(self._carried_out.pop(name, None), lost)
            _set_result(self._written.get(name), lost)
        for name, held in report.held.items():
            _set_result(self._held.pop(name, None), held)
        if report.memory is not None:
            _set_result(self.memory(), report.memory)

    def fail(self) -> None:
        """Fail everything that waits with EngineDied, because the engine is gone."""
        waiting: list[asyncio.Future[Any]] = [*self._carried_out.values(), *self._held.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(EngineDied("the engine's process is gone"))
        self._carried_out.clear()
        self._held.clear()


class ReportLogger(StatLoggerBase):  # type: ignore[misc]  # vLLM is untyped here
    """A stat logger for vLLM that takes the connector's reports out of the stats."""

    def __init__(self, vllm_config: "VllmConfig", engine_index: int, router: ReportRouter) -> None:  # noqa: ARG002
        self._router = router

    def record(
        self,
        scheduler_stats: "SchedulerStats | None",
        iteration_stats: "IterationStats | None",  # noqa: ARG002
        *args: Any,  # noqa: ANN401, ARG002
        **kwargs: Any,  # noqa: ANN401, ARG002
    ) -> None:
        """Take the stats of one step."""
        stats = scheduler_stats.kv_connector_stats if scheduler_stats is not None else None
        if stats and "report" in stats:
            self._router.receive(msgspec.convert(stats["report"], EngineReport))

    def log_engine_initialized(self) -> None:
        """Log nothing; vLLM requires the method."""


@contextmanager
def _expected(futures: "dict[str, asyncio.Future[T]]", name: str) -> "Iterator[asyncio.Future[T]]":
    """A future under this name within the block."""
    futures[name] = asyncio.get_running_loop().create_future()
    try:
        yield futures[name]
    finally:
        del futures[name]


def _set_result(future: "asyncio.Future[Any] | None", result: object) -> None:
    if future is not None and not future.done():
        future.set_result(result)
