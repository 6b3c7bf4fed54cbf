"""The retriever's gauges and counters as Prometheus metrics."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.metrics.part_metrics import PartMetrics
from protocol.documents import RetrieverStats
from protocol.parts import Retriever


class IngestMetrics(PartMetrics[RetrieverStats]):
    """Ingested and queued documents, the disk they are stored on, and chunks that the graphs do not have."""

    def __init__(self, registry: CollectorRegistry, retriever: Retriever, timeout_s: float) -> None:
        super().__init__(registry, retriever.stats, timeout_s)

    def families(self, answer: RetrieverStats) -> Iterator[Metric]:
        """The retriever's statistics as metrics."""
        ingested = CounterMetricFamily(
            "ragtree_ingest_documents",
            "Documents since the retriever's start, by outcome: stored, unchanged, failed.",
            labels=["status"],
        )
        for status, count in answer.ingested.items():
            ingested.add_metric([status], count)
        yield ingested
        yield GaugeMetricFamily(
            "ragtree_ingest_queue_depth", "Accepted documents that are not searchable yet.", answer.queued
        )
        yield GaugeMetricFamily("ragtree_data_disk_bytes", "Size of the documents' file system.", answer.disk_bytes)
        yield GaugeMetricFamily(
            "ragtree_data_disk_free_bytes",
            "Free space of the documents' file system.",
            answer.disk_free_bytes,
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
