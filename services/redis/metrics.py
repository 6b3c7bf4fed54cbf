"""Metrics of a process's Redis connection."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class RedisMetrics:
    """Prometheus metrics of one process, in the caller's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.up = Gauge("ragtree_redis_up", "Whether Redis answered the last call or probe.", registry=registry)
        self._errors = Counter(
            "ragtree_redis_errors_total",
            "Calls that Redis did not serve, including those not tried while it was down.",
            ["store"],
            registry=registry,
        )
        self._dropped = Counter(
            "ragtree_query_log_dropped_total", "Queries that were not logged for warm-ups.", registry=registry
        )

    def failed(self, store: str) -> None:
        """Count a call that Redis did not serve."""
        self._errors.labels(store).inc()

    def dropped(self) -> None:
        """Count a query that was not logged."""
        self._dropped.inc()
