"""The latencies that are measured of an answer."""

from enum import StrEnum


class Latency(StrEnum):
    """A latency, measured from the time the request was due, except ITL."""

    TTFR = "TTFR"
    """Time until the documents are final (``retrieval.completed``)."""
    TTFT = "TTFT"
    """Time until the first non-empty text."""
    ITL = "ITL"
    """Time between two pieces of text."""
    E2E = "E2E"
    """Time until the terminal event."""
