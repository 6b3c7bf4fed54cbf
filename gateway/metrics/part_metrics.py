"""Metrics of the other parts, requested at each scrape."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gateway.readiness import Readiness
from gateway.wire.cache_replies import token_bytes
from protocol.documents import RetrieverStats
from protocol.parts import Generator, Parts
from protocol.plans import ControllerStats, InstanceLoad

log = structlog.get_logger(__name__)

LABEL = "generator"
"""Label for the generator instance. Prometheus sets ``instance`` itself and would rename ours."""

T = TypeVar("T")
F = TypeVar("F", bound=CounterMetricFamily | GaugeMetricFamily)


class PartMetrics(Collector, Generic[T]):
    """Metrics of one part as of the last refresh. Empty if the part did not answer within ``timeout_s``.

    ``name`` names them in the log, and ``families`` makes them of the part's answer.
    """

    def __init__(
        self, name: str, ask: Callable[[], Awaitable[T]], families: Callable[[T], Iterable[Metric]], timeout_s: float
    ) -> None:
        self._name = name
        self._ask = ask
        self._families = families
        self._timeout_s = timeout_s
        self._answer: T | None = None

    async def refresh(self) -> None:
        """Request the part's statistics now."""
        answer: T | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._ask()
        except Exception as error:
            log.info("no_part_metrics", metrics=self._name, error=repr(error))
        self._answer = answer

    def collect(self) -> Iterable[Metric]:
        """The metrics as of the last refresh."""
        return () if self._answer is None else self._families(self._answer)


class Scrape:
    """Metrics of all parts in the caller's registry, refreshed concurrently."""

    def __init__(self, registry: CollectorRegistry, parts: Parts, readiness: Readiness, timeout_s: float) -> None:
        def cache(answer: ControllerStats) -> Iterator[Metric]:
            return cache_families(answer, token_bytes(readiness))

        self._parts: tuple[PartMetrics[Any], ...] = (
            PartMetrics("CacheMetrics", parts.controller.stats, cache, timeout_s),
            PartMetrics("IngestMetrics", parts.retriever.stats, ingest_families, timeout_s),
            PartMetrics("EngineMetrics", lambda: _engines(parts.generator), list, timeout_s),
        )
        for part in self._parts:
            registry.register(part)
        self._running: asyncio.Task[None] | None = None

    async def refresh(self) -> None:
        """Request all parts' statistics now. Anyone who asks meanwhile waits for the same answers."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._ask_all())
        await asyncio.shield(self._running)

    async def _ask_all(self) -> None:
        await asyncio.gather(*(part.refresh() for part in self._parts))


def cache_families(answer: ControllerStats, token_bytes: float | None) -> Iterator[Metric]:
    """The queue, and each kind of tier over all instances.

    Sizes in bytes are missing if the engine does not report the size of a token's KV.
    """
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
    yield _labelled(instances, states)
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
    yield _labelled(evicted, evictions)
    if token_bytes is not None:
        held = GaugeMetricFamily("ragtree_cache_bytes", "KV in a tier.", labels=["tier"])
        yield _labelled(held, used, token_bytes)
        most = GaugeMetricFamily("ragtree_cache_capacity_bytes", "Capacity of a tier for KV.", labels=["tier"])
        yield _labelled(most, capacity, token_bytes)


def ingest_families(answer: RetrieverStats) -> Iterator[Metric]:
    """Ingested and queued documents, the disk they are stored on, and chunks that the graphs do not have."""
    ingested = CounterMetricFamily(
        "ragtree_ingest_documents",
        "Documents since the retriever's start, by outcome: stored, unchanged, failed.",
        labels=["status"],
    )
    yield _labelled(ingested, answer.ingested)
    yield GaugeMetricFamily(
        "ragtree_ingest_queue_depth", "Accepted documents that are not searchable yet.", answer.queued
    )
    yield GaugeMetricFamily("ragtree_data_disk_bytes", "Size of the documents' file system.", answer.disk_bytes)
    yield GaugeMetricFamily(
        "ragtree_data_disk_free_bytes", "Free space of the documents' file system.", answer.disk_free_bytes
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


async def _engines(generator: Generator) -> list[Metric]:
    """The engines' own metrics, such as vLLM's."""
    # Parsed in a thread: hundreds of lines would block the event loop, which also sends tokens.
    return await asyncio.to_thread(merged, await generator.metrics())


def merged(by_instance: Mapping[str, str]) -> list[Metric]:
    """Merge texts in Prometheus' format, by instance, into metrics with unique names. Raises ValueError for others.

    Each sample has its instance's name in ``LABEL``.
    """
    families: dict[str, Metric] = {}
    for instance, text in by_instance.items():
        for family in text_string_to_metric_families(text):
            # The start times of series are not needed, and add half as many series again.
            if family.name.endswith("_created"):
                continue
            labelled = [sample._replace(labels={**sample.labels, LABEL: instance}) for sample in family.samples]
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type)).samples += labelled
    return list(families.values())


def _labelled(family: F, values: Mapping[str, int], factor: float = 1) -> F:
    for label, value in values.items():
        family.add_metric([label], value * factor)
    return family


def _state(instance: InstanceLoad) -> str:
    if instance.refused:
        return "refused"
    if instance.retired:
        return "retired"
    return "kv_generator" if instance.kv_generator else "serving"
