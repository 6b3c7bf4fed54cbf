"""Metrics of the other parts, requested at each scrape."""

import asyncio
from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gateway.readiness import Readiness
from gateway.wire.cache_replies import token_bytes
from protocol.documents import RetrieverStats
from protocol.parts import Controller, Generator, Retriever
from protocol.plans import ControllerStats, InstanceLoad

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


class CacheMetrics(PartMetrics[ControllerStats]):
    """The queue and the tiers. Sizes in bytes are missing if the engine does not report the size of a token's KV."""

    def __init__(
        self, registry: CollectorRegistry, controller: Controller, readiness: Readiness, timeout_s: float
    ) -> None:
        self._readiness = readiness
        super().__init__(registry, controller.stats, timeout_s)

    def families(self, answer: ControllerStats) -> Iterator[Metric]:
        """The queue, and each kind of tier over all instances."""
        yield GaugeMetricFamily("ragtree_queue_depth", "Queued queries.", answer.queued)
        yield GaugeMetricFamily(
            "ragtree_plans_running", "Plans that run on engines, including speculative ones.", answer.running
        )
        instances = GaugeMetricFamily(
            "ragtree_instances",
            "Instances of the generator by state: serving, retired and about to end, generating KV only, or refused.",
            labels=["state"],
        )
        states = Counter({"serving": 0, "retired": 0, "kv_generator": 0, "refused": 0})
        states.update(_state(instance) for instance in answer.instances)
        for state, count in states.items():
            instances.add_metric([state], count)
        yield instances
        yield CounterMetricFamily(
            "ragtree_cache_prepared_tokens",
            "Prompt tokens loaded or computed for queued queries before their admission.",
            answer.prepared_tokens,
        )
        yield CounterMetricFamily(
            "ragtree_cache_generated_tokens",
            "Prompt tokens that KV generators computed for queued queries.",
            answer.generated_tokens,
        )
        yield CounterMetricFamily(
            "ragtree_cache_peer_tokens", "Tokens whose KV was read on another machine.", answer.peer_tokens
        )
        yield CounterMetricFamily(
            "ragtree_cache_peer_failures",
            "Reads on another machine that it did not serve in time. The tokens were computed.",
            answer.peer_failures,
        )
        yield CounterMetricFamily(
            "ragtree_cache_moves_given_up",
            "Moves of KV that were lost with three instances, one after another.",
            answer.moves_given_up,
        )
        evictions, used, capacity = Counter[str](), Counter[str](), Counter[str]()
        for tier in answer.tiers:
            evictions[tier.tier.value] += tier.evictions
            used[tier.tier.value] += tier.used_tokens
            capacity[tier.tier.value] += tier.capacity_tokens
        evicted = CounterMetricFamily(
            "ragtree_cache_evictions", "Nodes evicted from a tier since the controller's start.", labels=["tier"]
        )
        for name, nodes in evictions.items():
            evicted.add_metric([name], nodes)
        yield evicted
        size = token_bytes(self._readiness)
        if size is not None:
            yield _bytes("ragtree_cache_bytes", "KV in a tier.", used, size)
            yield _bytes("ragtree_cache_capacity_bytes", "Capacity of a tier for KV.", capacity, size)


def _bytes(name: str, documentation: str, tokens: Counter[str], token_bytes: float) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=["tier"])
    for tier, count in tokens.items():
        family.add_metric([tier], count * token_bytes)
    return family


def _state(instance: InstanceLoad) -> str:
    if instance.refused:
        return "refused"
    if instance.retired:
        return "retired"
    return "kv_generator" if instance.kv_generator else "serving"


class IngestMetrics(PartMetrics[RetrieverStats]):
    """Ingested and queued documents, the disk they are stored on, and chunks that the graphs do not have."""

    def __init__(self, registry: CollectorRegistry, retriever: Retriever, timeout_s: float) -> None:
        super().__init__(registry, retriever.stats, timeout_s)

    def families(self, answer: RetrieverStats) -> Iterator[Metric]:
        """The retriever's statistics as metrics."""
        ingested = CounterMetricFamily(
            "ragtree_ingest_documents",
            "Documents since the retriever's start, by outcome: stored, unchanged, failed.",
            labels=["status"],
        )
        for status, count in answer.ingested.items():
            ingested.add_metric([status], count)
        yield ingested
        yield GaugeMetricFamily(
            "ragtree_ingest_queue_depth", "Accepted documents that are not searchable yet.", answer.queued
        )
        yield GaugeMetricFamily("ragtree_data_disk_bytes", "Size of the documents' file system.", answer.disk_bytes)
        yield GaugeMetricFamily(
            "ragtree_data_disk_free_bytes",
            "Free space of the documents' file system.",
            answer.disk_free_bytes,
        )
        if answer.unread_chunks is not None:
            yield GaugeMetricFamily(
                "ragtree_graph_unread_chunks",
                "Searchable chunks that are not in the graph of their collection yet.",
                answer.unread_chunks,
            )
        if answer.unreadable_chunks is not None:
            yield GaugeMetricFamily(
                "ragtree_graph_unreadable_chunks",
                "Searchable chunks that could not be read, so the graph of their collection has nothing of them.",
                answer.unreadable_chunks,
            )


LABEL = "generator"
"""Label for the generator instance. Prometheus sets ``instance`` itself and would rename ours."""


class EngineMetrics(PartMetrics[list[Metric]]):
    """The metrics of all instances, merged by name. Each sample has its instance's name in ``LABEL``."""

    def __init__(self, registry: CollectorRegistry, generator: Generator, timeout_s: float) -> None:
        self._generator = generator
        super().__init__(registry, self._asked, timeout_s)

    def families(self, answer: list[Metric]) -> Iterator[Metric]:
        """The merged metrics."""
        return iter(answer)

    async def _asked(self) -> list[Metric]:
        # Parsed in a thread: hundreds of lines would block the event loop, which also sends tokens.
        return await asyncio.to_thread(merged, await self._generator.metrics())


def merged(by_instance: dict[str, str]) -> list[Metric]:
    """Merge texts in Prometheus' format, by instance, into metrics with unique names. Raises ValueError for others."""
    families: dict[str, Metric] = {}
    for instance, text in by_instance.items():
        for family in text_string_to_metric_families(text):
            # The start times of series are not needed, and add half as many series again.
            if family.name.endswith("_created"):
                continue
            labelled = [sample._replace(labels={**sample.labels, LABEL: instance}) for sample in family.samples]
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type)).samples += labelled
    return list(families.values())
