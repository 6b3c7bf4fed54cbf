"""What the gateway is at the moment of a scrape."""

from collections.abc import Iterator, Sized

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.readiness import Readiness


class StateMetrics(Collector):
    """Queries under way, which parts can serve, and which version this is."""

    def __init__(self, registry: CollectorRegistry, runs: Sized, readiness: Readiness, version: str) -> None:
        self._runs = runs
        self._readiness = readiness
        self._version = version
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """The gauges now."""
        yield GaugeMetricFamily("ragtree_queries_running", "Queries under way.", len(self._runs))
        ready = GaugeMetricFamily(
            "ragtree_part_ready", "Whether a part can serve, 1 or 0, as the gateway found last.", labels=["part"]
        )
        missing = self._readiness.missing()
        for part in Readiness.PARTS:
            ready.add_metric([part], part not in missing)
        yield ready
        yield InfoMetricFamily("ragtree_build", "The version that runs.", {"version": self._version})
