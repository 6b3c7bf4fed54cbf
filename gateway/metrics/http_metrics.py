"""Metrics of HTTP requests, streams and uploads."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class HttpMetrics:
    """HTTP requests, streams and uploads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "ragtree_http_requests_total",
            "Requests by route and status; `none` if no route matched, or no reply started.",
            ["route", "status"],
            registry=registry,
        )
        self.streams = Gauge("ragtree_streams_open", "Open streams of server-sent events.", registry=registry)
        self._uploads = Counter(
            "ragtree_uploads_total", "Accepted uploads, documents or batches.", ["kind"], registry=registry
        )
        self._upload_bytes = Counter(
            "ragtree_upload_bytes_total", "Bytes of accepted uploads.", ["kind"], registry=registry
        )

    def served(self, route: str | None, status: int | None) -> None:
        """Count a request by its route's template and its status."""
        self._requests.labels(route or "none", status or "none").inc()

    def uploaded(self, kind: str, size: int) -> None:
        """Count an upload by kind, ``document`` or ``batch``, and its size in bytes."""
        self._uploads.labels(kind).inc()
        self._upload_bytes.labels(kind).inc(size)
