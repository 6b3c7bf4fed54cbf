"""Workloads: streams of requests for the cache simulator, and views that cut, rescale or reorder them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from protocol.errors import ConfigError

PAPER_MEAN_TOKENS = 3718.0
"""Mean length of a document in RAGCache's corpus, Wikipedia."""


class TraceDocument(NamedTuple):
    """A document as a cache sees it: equal ids are equal texts of ``tokens`` tokens, at least one."""

    id: str
    tokens: int


class TraceRequest(NamedTuple):
    """A request: its arrival in seconds, and the parts of its prompt in tokens, in prompt order.

    The order is system prompt, documents, question. Requests with the same ``system_id`` share a system prompt.
    """

    arrival_s: float
    documents: tuple[TraceDocument, ...]
    question_tokens: int
    output_tokens: int = 0
    system_tokens: int = 0
    system_id: str = ""


class Workload(ABC):
    """A stream of requests in order of arrival. It can be read any number of times, and is never held in memory."""

    name: str

    @property
    @abstractmethod
    def length(self) -> int | None:
        """The number of requests; None if only reading all of them would tell."""

    @abstractmethod
    def requests(self) -> Iterator[TraceRequest]:
        """Iterate over the requests from the first on; the same ones each time.

        Raises ConfigError for an invalid file.
        """

    def top_k(self, k: int) -> "Workload":
        """Return the same requests with only the first ``k`` documents of each."""
        return FirstDocuments(self, k)

    def limit(self, count: int) -> "Workload":
        """Return only the first ``count`` requests."""
        return FirstRequests(self, count)

    def at_rate(self, requests_per_s: float) -> "Workload":
        """Return the same requests at another mean rate, with bursts and lulls in proportion."""
        return AtRate(self, requests_per_s)


class DerivedWorkload(Workload):
    """A workload made from another one's requests, under its name."""

    def __init__(self, source: Workload) -> None:
        self.name = source.name
        self._source = source

    @property
    def length(self) -> int | None:
        """The source's length."""
        return self._source.length


class FirstDocuments(DerivedWorkload):
    """Keeps the first ``k`` documents of each request. Raises ConfigError unless ``k`` is at least 1."""

    def __init__(self, source: Workload, k: int) -> None:
        super().__init__(source)
        if k < 1:
            raise ConfigError("top_k must be at least 1", param="top_k")
        self._k = k

    def requests(self) -> Iterator[TraceRequest]:
        """Iterate over the shortened requests."""
        for request in self._source.requests():
            yield request._replace(documents=request.documents[: self._k])


class FirstRequests(DerivedWorkload):
    """Keeps the first ``count`` requests. Raises ConfigError unless ``count`` is at least 1."""

    def __init__(self, source: Workload, count: int) -> None:
        super().__init__(source)
        if count < 1:
            raise ConfigError("the number of requests must be at least 1", param="requests")
        self._count = count

    @property
    def length(self) -> int | None:
        """The limit, or the source's length if that is less."""
        length = super().length
        return length if length is None else min(length, self._count)

    def requests(self) -> Iterator[TraceRequest]:
        """Iterate over the requests up to the limit."""
        return islice(self._source.requests(), self._count)


class AtRate(DerivedWorkload):
    """Scales the times between requests to a mean rate; the first arrives at 0.

    The mean is over the gaps between arrivals, which takes a full reading of the source before the first request.
    Raises ConfigError for a rate that is not positive, and on reading if all requests arrive at once.
    """

    def __init__(self, source: Workload, requests_per_s: float) -> None:
        super().__init__(source)
        check_rate(requests_per_s)
        self._gap_s = 1 / requests_per_s
        self._scaling: tuple[float, float] | None = None

    def requests(self) -> Iterator[TraceRequest]:
        """Iterate over the requests at their new times."""
        first_s, factor = self._scaling = self._scaling or self._measure()
        for request in self._source.requests():
            yield request._replace(arrival_s=(request.arrival_s - first_s) * factor)

    def _measure(self) -> tuple[float, float]:
        """Return the first arrival and the factor for gaps."""
        first_s = last_s = 0.0
        gaps = -1
        for request in self._source.requests():
            last_s = request.arrival_s
            gaps += 1
            if gaps == 0:
                first_s = last_s
        if gaps > 0 and last_s <= first_s:
            raise ConfigError(
                f"all requests of {self.name} arrive at once, so they cannot be scaled to a rate", param="rate"
            )
        return first_s, self._gap_s * gaps / (last_s - first_s) if gaps > 0 else 1.0


def check_rate(rate: float) -> None:
    """Raise ConfigError unless the rate is positive and finite."""
    if not 0 < rate < math.inf:
        raise ConfigError(f"the rate must be a positive number of requests per second, not {rate}", param="rate")
