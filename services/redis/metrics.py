"""What a process counts about its Redis."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class RedisMetrics:
    """Prometheus metrics of one process, in a registry of the caller's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.up = Gauge("ragtree_redis_up", "Whether Redis answered when it was last asked.", registry=registry)
        self._errors = Counter(
            "ragtree_redis_errors_total",
            "Calls that Redis did not serve, those that were not even tried while it was away included.",
            ["store"],
            registry=registry,
        )
        self._dropped = Counter(
            "ragtree_query_log_dropped_total", "Queries that were not noted for warming up.", registry=registry
        )

    def failed(self, store: str) -> None:
        """Count a call of a store that Redis did not serve."""
        self._errors.labels(store).inc()

    def dropped(self) -> None:
        """Count a query that was not noted."""
        self._dropped.inc()
