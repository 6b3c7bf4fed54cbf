"""The record of each request, written as one JSON line as soon as the request ends."""

from enum import StrEnum
from pathlib import Path

import msgspec

FILE_NAME = "requests.jsonl"


class Outcome(StrEnum):
    """How a request ended. Each request has exactly one outcome."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """429 or 503 with Retry-After: the stack is overloaded. This is not an error."""
    FAILED = "failed"
    DISCONNECTED = "disconnected"
    """The client disconnected on purpose."""
    MISSED = "missed"
    """Never sent, because too many streams were open."""
    UNFINISHED = "unfinished"
    """The run ended first."""


class BeginRecord(msgspec.Struct, tag="begin", tag_field="kind"):
    """The start of the run on the machine's monotonic clock, in seconds. All processes share this clock."""

    monotonic: float


class QueryRecord(msgspec.Struct, kw_only=True, omit_defaults=True, tag="query", tag_field="kind"):
    """One query. All times are in seconds.

    ``at``, ``sent`` and ``ended`` count from the start of the run. Latencies count from ``at``, when the query was due.
    ``itl`` are the gaps between pieces of text as the client saw them. ``reason`` explains a refusal or failure.
    ``sources`` are the found documents, ``cited`` those that the answer cites. ``text`` is the answer so far.
    ``terminals`` is the number of terminal events.
    """

    number: int
    at: float
    query: str
    outcome: Outcome = Outcome.UNFINISHED
    sent: float | None = None
    ended: float | None = None
    status: int | None = None
    reason: str | None = None
    query_id: str | None = None
    ttfr: float | None = None
    ttft: float | None = None
    e2e: float | None = None
    itl: list[float] = []
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    sources: list[str] = []
    cited: list[str] = []
    text: str = ""
    terminals: int = 0


class WriteAction(StrEnum):
    """What is done to a document."""

    INGEST = "ingest"
    DELETE = "delete"


class WriteRecord(msgspec.Struct, kw_only=True, omit_defaults=True, tag="write", tag_field="kind"):
    """A document that was ingested or deleted. Times are as in QueryRecord."""

    action: WriteAction
    at: float
    document_id: str = ""
    outcome: Outcome = Outcome.UNFINISHED
    ended: float | None = None
    status: int | None = None
    reason: str | None = None


Record = BeginRecord | QueryRecord | WriteRecord


class RecordFile:
    """The records of a run, written line by line, so that they survive a crash of the run."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / FILE_NAME).open("wb")

    def add(self, record: Record) -> None:
        """Write a record."""
        self._file.write(msgspec.json.encode(record) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_records(folder: Path) -> list[Record]:
    """Read the records in a run's folder, none before its traffic starts. An incomplete last line is dropped."""
    file = folder / FILE_NAME
    whole, _, _ = (file.read_bytes() if file.exists() else b"").rpartition(b"\n")
    decoder = msgspec.json.Decoder(Record)
    return [decoder.decode(line) for line in whole.splitlines()]
