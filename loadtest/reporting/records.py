"""What became of each request, one line a request, written as soon as it is known."""

from enum import StrEnum
from pathlib import Path

import msgspec

FILE_NAME = "requests.jsonl"


class Outcome(StrEnum):
    """How a request ended; each has exactly one."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """429 or 503 with Retry-After: the stack's own word that it is asked too much. No error."""
    FAILED = "failed"
    DISCONNECTED = "disconnected"
    """The client left, as it was meant to."""
    MISSED = "missed"
    """Never sent: as many streams were open as the load test bears."""
    UNFINISHED = "unfinished"
    """The run was ended before it was."""


class BeginRecord(msgspec.Struct, tag="begin", tag_field="kind"):
    """When the run began, in seconds of the machine's monotonic clock, which all of its processes share."""

    monotonic: float


class QueryRecord(msgspec.Struct, kw_only=True, omit_defaults=True, tag="query", tag_field="kind"):
    """One query. ``at``, ``sent`` and ``ended`` count from the run's begin, the latencies from ``at``, when it was due.

    All are seconds. ``itl`` has the gaps between pieces of text as the client saw them; ``reason`` says why it was
    refused or failed. ``sources`` are the documents that were found, ``cited`` those that the answer names, ``text`` is
    the answer as far as it came, and ``terminals`` counts the events that end it.
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
    """What happens to a document."""

    INGEST = "ingest"
    DELETE = "delete"


class WriteRecord(msgspec.Struct, kw_only=True, omit_defaults=True, tag="write", tag_field="kind"):
    """A document that went in or out meanwhile; times as a query's."""

    action: WriteAction
    at: float
    document_id: str = ""
    outcome: Outcome = Outcome.UNFINISHED
    ended: float | None = None
    status: int | None = None
    reason: str | None = None


Record = BeginRecord | QueryRecord | WriteRecord


class RecordFile:
    """The records of a run, on disk line by line: what is there survives whatever ends the run."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / FILE_NAME).open("wb")

    def add(self, record: Record) -> None:
        """Write a record down."""
        self._file.write(msgspec.json.encode(record) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Nothing more comes."""
        self._file.close()


def read_records(folder: Path) -> list[Record]:
    """The records of a run's folder; a last line that was cut off is left out."""
    whole, _, _ = (folder / FILE_NAME).read_bytes().rpartition(b"\n")
    decoder = msgspec.json.Decoder(Record)
    return [decoder.decode(line) for line in whole.splitlines()]
