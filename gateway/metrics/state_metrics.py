"""The gateway's state at the moment of a scrape."""

from collections.abc import Iterator, Sized

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.readiness import Readiness


class StateMetrics(Collector):
    """Running queries, readiness of the parts, and the gateway's version."""

    def __init__(self, registry: CollectorRegistry, runs: Sized, readiness: Readiness, version: str) -> None:
        self._runs = runs
        self._readiness = readiness
        self._version = version
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """The gauges now."""
        yield GaugeMetricFamily("ragtree_queries_running", "Running queries.", len(self._runs))
        ready = GaugeMetricFamily(
            "ragtree_part_ready", "1 if a part can serve, as of the last check, else 0.", labels=["part"]
        )
        missing = self._readiness.missing()
        for part in Readiness.PARTS:
            ready.add_metric([part], part not in missing)
        yield ready
        yield InfoMetricFamily("ragtree_build", "The running version.", {"version": self._version})
