"""The parts that take documents in, put together."""

from typing import NamedTuple

from retriever.ingestion.ingest_counts import IngestCounts
from retriever.ingestion.ingester import Ingester
from retriever.ingestion.upload_intake import UploadIntake
from retriever.work_thread import WorkThread


class Ingestion(NamedTuple):
    """``intake`` queues uploads. ``ingester`` ingests them in its ``thread``. ``counts`` says what came in."""

    intake: UploadIntake
    ingester: Ingester
    thread: WorkThread
    counts: IngestCounts
