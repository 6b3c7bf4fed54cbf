"""The retriever's gauges and counters as Prometheus metrics."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.metrics.part_metrics import PartMetrics
from protocol.documents import RetrieverStats
from protocol.parts import Retriever


class IngestMetrics(PartMetrics[RetrieverStats]):
    """What became of documents, how many wait, and the disk that they are kept on."""

    def __init__(self, registry: CollectorRegistry, retriever: Retriever, timeout_s: float) -> None:
        super().__init__(registry, retriever.stats, timeout_s)

    def families(self, answer: RetrieverStats) -> Iterator[Metric]:
        """Ingestion and disk."""
        ingested = CounterMetricFamily(
            "ragtree_ingest_documents",
            "Documents by what became of them, since the retriever's start: stored, unchanged, failed.",
            labels=["status"],
        )
        for status, count in answer.ingested.items():
            ingested.add_metric([status], count)
        yield ingested
        yield GaugeMetricFamily(
            "ragtree_ingest_queue_depth", "Documents that were accepted and are not searchable yet.", answer.queued
        )
        yield GaugeMetricFamily(
            "ragtree_data_disk_bytes", "Size of the file system that documents are on.", answer.disk_bytes
        )
        yield GaugeMetricFamily(
            "ragtree_data_disk_free_bytes",
            "What is free on the file system that documents are on.",
            answer.disk_free_bytes,
        )
