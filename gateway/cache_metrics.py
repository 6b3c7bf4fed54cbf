"""The controller's gauges and counters as Prometheus metrics, asked for when they are scraped."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.cache import token_bytes
from gateway.readiness import Readiness
from protocol.parts import Controller
from protocol.plans import ControllerStats

log = structlog.get_logger(__name__)


class CacheMetrics(Collector):
    """What the queue and the tiers are as of the last look. Where that got no answer, there are no samples."""

    def __init__(
        self, registry: CollectorRegistry, controller: Controller, readiness: Readiness, timeout_s: float
    ) -> None:
        self._controller = controller
        self._readiness = readiness
        self._timeout_s = timeout_s
        self._stats: ControllerStats | None = None
        registry.register(self)

    async def look(self) -> None:
        """Ask the controller now."""
        self._stats = None
        try:
            async with asyncio.timeout(self._timeout_s):
                self._stats = await self._controller.stats()
        except Exception as error:
            log.info("no_cache_metrics", error=repr(error))

    def collect(self) -> Iterator[Metric]:
        """The metrics as of the last look."""
        if self._stats is None:
            return
        yield GaugeMetricFamily("ragtree_queue_depth", "Queries that wait for their turn.", self._stats.queued)
        instances = GaugeMetricFamily(
            "ragtree_instances",
            "Instances of the generator: those that serve, and those that end.",
            labels=["state"],
        )
        retired = sum(instance.retired for instance in self._stats.instances)
        instances.add_metric(["serving"], len(self._stats.instances) - retired)
        instances.add_metric(["retired"], retired)
        yield instances
        yield CounterMetricFamily(
            "ragtree_cache_prepared_tokens",
            "Prompt tokens that were loaded or computed for queries that waited, ahead of their turns.",
            self._stats.prepared_tokens,
        )
        evictions, used = Counter[str](), Counter[str]()
        for tier in self._stats.tiers:
            evictions[tier.tier.value] += tier.evictions
            used[tier.tier.value] += tier.used_tokens
        evicted = CounterMetricFamily(
            "ragtree_cache_evictions", "Nodes that left a tier, since the controller's start.", labels=["tier"]
        )
        for name, nodes in evictions.items():
            evicted.add_metric([name], nodes)
        yield evicted
        size = token_bytes(self._readiness)
        if size is not None:
            held = GaugeMetricFamily("ragtree_cache_bytes", "KV that a tier holds.", labels=["tier"])
            for name, tokens in used.items():
                held.add_metric([name], tokens * size)
            yield held
