"""Metrics of the other parts, requested at each scrape."""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

log = structlog.get_logger(__name__)

T = TypeVar("T")


class PartMetrics(Collector, Generic[T]):
    """Metrics of one part as of the last refresh. Empty if the part did not answer within ``timeout_s``."""

    def __init__(self, registry: CollectorRegistry, ask: Callable[[], Awaitable[T]], timeout_s: float) -> None:
        self._ask = ask
        self._timeout_s = timeout_s
        self._answer: T | None = None
        registry.register(self)

    async def refresh(self) -> None:
        """Request the part's statistics now."""
        answer: T | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._ask()
        except Exception as error:
            log.info("no_part_metrics", metrics=type(self).__name__, error=repr(error))
        self._answer = answer

    def collect(self) -> Iterable[Metric]:
        """The metrics as of the last refresh."""
        return () if self._answer is None else self.families(self._answer)

    @abstractmethod
    def families(self, answer: T) -> Iterator[Metric]:
        """The answer as metrics."""


class Scrape:
    """Metrics of all parts, refreshed concurrently."""

    def __init__(self, *parts: PartMetrics[Any]) -> None:
        self._parts = parts
        self._running: asyncio.Task[None] | None = None

    async def refresh(self) -> None:
        """Request all parts' statistics now. Anyone who asks meanwhile waits for the same answers."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._ask_all())
        await asyncio.shield(self._running)

    async def _ask_all(self) -> None:
        await asyncio.gather(*(part.refresh() for part in self._parts))
