"""What the gateway counts of HTTP itself, whatever was asked for."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class HttpMetrics:
    """Requests, streams and uploads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "ragtree_http_requests_total",
            "Requests by route and status; `none` where no route was reached, or no answer began.",
            ["route", "status"],
            registry=registry,
        )
        self.streams = Gauge("ragtree_streams_open", "Responses of server-sent events being sent.", registry=registry)
        self._uploads = Counter(
            "ragtree_uploads_total", "Uploads accepted, documents or batches.", ["kind"], registry=registry
        )
        self._upload_bytes = Counter(
            "ragtree_upload_bytes_total", "Bodies of uploads accepted, in bytes.", ["kind"], registry=registry
        )

    def served(self, route: str | None, status: int | None) -> None:
        """Count a request under its route's template and status."""
        self._requests.labels(route or "none", status or "none").inc()

    def uploaded(self, kind: str, size: int) -> None:
        """Count an upload of a ``document`` or a ``batch``, in bytes of its body."""
        self._uploads.labels(kind).inc()
        self._upload_bytes.labels(kind).inc(size)
