"""The metrics that vLLM keeps in this process, as text.

vLLM's Prometheus logger is on unless ``disable_log_stats`` is set; with the connector's reports it is on even then.
"""

from collections.abc import Iterator

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

_PREFIX = "vllm:"


def exposition() -> str:
    """All of vLLM's metrics in Prometheus' text format."""
    from vllm.v1.metrics.prometheus import get_prometheus_registry

    return generate_latest(_Only(get_prometheus_registry())).decode()


class _Only(Collector):
    """The metrics of vLLM in a registry that Ray and Python share."""

    def __init__(self, registry: Collector) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        return (metric for metric in self._registry.collect() if metric.name.startswith(_PREFIX))
